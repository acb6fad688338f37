"""Topics and groups that go with all that is theirs, and changes that a full disk refused."""
