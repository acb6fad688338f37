"""AMQP messages as native ones and back."""
