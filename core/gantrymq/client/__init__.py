"""The native client: producers, consumers and administration."""
