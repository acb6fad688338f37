"""Which light queues a record enters."""
