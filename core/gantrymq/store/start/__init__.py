"""What a start reads: where it begins, what it makes again, directories of a real RocketMQ."""
