"""Where consumer groups are in their queues: cursors, windows, offsets, leases."""
