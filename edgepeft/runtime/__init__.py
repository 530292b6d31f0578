"""Running a bundle: ONNX Runtime alone, never torch."""
