"""The broker's Remoting door and its request handlers."""
