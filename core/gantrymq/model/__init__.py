"""Messages, names and errors of the native model; imports nothing but the standard library."""
