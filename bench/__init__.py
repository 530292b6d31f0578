"""Benchmarks of the repository, which no wheel carries: what edgepeft claims, and how far its predictions are off."""
