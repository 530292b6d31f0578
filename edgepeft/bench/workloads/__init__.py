"""What a worker does in a step: a model's work, and the yardsticks of a host's speed."""
