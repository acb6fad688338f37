"""What is held of requests that are not whole, and for slow readers."""
