"""Index files: from a key to its records."""
