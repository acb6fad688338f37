"""What of the log may go, and what lives in it."""
