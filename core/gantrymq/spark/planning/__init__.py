"""What a query reads: options, offsets, and the ranges that tasks get. Knows the broker, but not Spark."""
