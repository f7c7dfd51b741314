"""Commands that a server carries out, and how they talk to it."""
