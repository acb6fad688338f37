"""Which cursors there are."""
