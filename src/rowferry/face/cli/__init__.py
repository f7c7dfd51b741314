"""The command line. Commands never print by themselves: `output` does, plain when piped."""
