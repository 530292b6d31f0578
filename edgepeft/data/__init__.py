"""Training data without torch (readers, splits, batches), and the training loop of both engines."""
