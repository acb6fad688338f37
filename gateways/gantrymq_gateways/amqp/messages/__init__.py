"""Messages in from publishers and out to consumers."""
