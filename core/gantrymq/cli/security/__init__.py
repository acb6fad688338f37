"""Commands about who may come in: certificates, users, rights."""
