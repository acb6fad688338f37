"""What tables are to messages."""
