"""Reading by offset or by pop."""
