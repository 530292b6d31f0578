"""Training a delta on a workstation: data, loop, checkpoints."""
