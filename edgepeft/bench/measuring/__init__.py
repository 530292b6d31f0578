"""Workers under a device's limits, and the rounds in which they are measured."""
