"""Records between broker groups: a source keeps them in forward queues, their owner takes them from there (docs/architecture/cluster.md)."""
