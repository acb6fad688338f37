"""Batches on their way into the log, and their acknowledgements back."""
