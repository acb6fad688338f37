"""Arrow columns into messages on the wire: the sink's part that runs in the executors."""
