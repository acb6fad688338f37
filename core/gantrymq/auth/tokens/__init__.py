"""JSON Web Tokens of an issuer elsewhere (RFC 7519): who somebody is, its groups and RabbitMQ's scopes, for as long as the token says."""
