"""optimum's classes for ONNX Runtime, where the one that is installed can be imported."""

from __future__ import annotations

import importlib
from typing import Any

import pytest


def optimum_class(name: str) -> Any:
    """That class; without it the test is skipped: optimum-onnx 0.1.0 knows no transformers 5."""
    try:
        return getattr(importlib.import_module("optimum.onnxruntime"), name)
    except ImportError as error:
        pytest.skip(f"needs optimum-onnx: {error}")
