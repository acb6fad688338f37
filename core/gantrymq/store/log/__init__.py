"""The commit log: segment files, records, and how a log is read after a crash."""
