"""Verdicts: whether one version is slower than another, or makes a device do more."""
