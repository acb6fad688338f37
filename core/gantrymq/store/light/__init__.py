"""Light queues: queues without a file each."""
