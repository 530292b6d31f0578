"""Edits of ONNX graphs, one pass a file; never torch."""
