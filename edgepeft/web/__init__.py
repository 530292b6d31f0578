"""Bundles as static sites: every task answered in the browser by ONNX Runtime Web."""
