"""What is checked before a changefeed is stored: the machine, source, sink and settings."""
