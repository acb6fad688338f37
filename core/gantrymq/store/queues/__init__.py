"""Consume queues: 20 bytes per record and queue."""
