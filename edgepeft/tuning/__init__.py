"""Fine-tuning on a board: ONNX Runtime computes the gradients, NumPy does the rest, torch is never imported."""
