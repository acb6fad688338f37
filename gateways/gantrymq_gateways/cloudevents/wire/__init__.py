"""CloudEvents over HTTP/1.1 without I/O."""
