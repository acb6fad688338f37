"""Tokens: JSON Web Tokens of an issuer elsewhere (RFC 7519) with user, groups and RabbitMQ's scopes, and our own, each of which stands for a user."""
