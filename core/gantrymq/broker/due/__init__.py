"""What delays, pops and transactions share: a message that waits, and its way back."""
