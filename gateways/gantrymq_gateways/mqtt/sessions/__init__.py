"""Sessions: what waits for a client, how they begin and end."""
