"""Commands that read, check, rebuild and compare what changefeeds wrote."""
