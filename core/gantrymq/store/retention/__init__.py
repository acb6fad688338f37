"""Which segment may go, and how it is taken away."""
