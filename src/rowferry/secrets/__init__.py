"""Where the secrets of changefeeds come from when their settings only say where they are."""
