"""Settings of changefeeds as operators see and change them."""
