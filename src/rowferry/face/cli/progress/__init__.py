"""How far a changefeed is, as the shell shows it: bars on a terminal, lines when piped."""
