"""The HTTP service: a bundle's tasks over loopback or a network, with ONNX Runtime alone."""
