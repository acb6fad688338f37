"""RocketMQ's own files, settings and statistics."""
