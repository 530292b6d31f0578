"""What a training run is, whatever engine computes it: steps, evaluations, the best checkpoint, resumption."""
