"""Push delivery to sinks."""
