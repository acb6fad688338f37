"""The gateway protocol: what gateway processes and brokers say to each other."""
