"""What is a whole process's, and not one connection's."""
