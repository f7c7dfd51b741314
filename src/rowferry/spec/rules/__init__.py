"""Lists of rules for tables by name, as users write them."""
