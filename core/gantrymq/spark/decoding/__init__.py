"""Raw records into Arrow columns. Knows neither Spark nor sockets."""
