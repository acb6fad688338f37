"""Logins of more than a name and a password (RFC 4422), the same at every door that has them: SCRAM-SHA-256 and OAUTHBEARER."""
