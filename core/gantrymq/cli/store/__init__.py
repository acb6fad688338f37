"""What `gantry store` does."""
