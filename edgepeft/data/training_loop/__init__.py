"""The training loop of both engines: steps, evaluations, the best checkpoint, resumption."""
