"""Stage 5: make bytes durable, then visible."""
