"""TLS: contexts from files, followed as they change; who the peer is; accepting with it."""
