"""RabbitMQ's management HTTP API: what tools ask a RabbitMQ, answered from the same definitions and queues that AMQP clients use."""
