"""What is checked before a changefeed is stored: this machine, the source, the sink, the settings."""
