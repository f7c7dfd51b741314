"""What sinks with topics share: which topics there are, what was delivered, who gets what."""
