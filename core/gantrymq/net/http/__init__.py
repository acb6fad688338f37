"""HTTP/1.1 as a server: one connection without I/O, and the door around it."""
