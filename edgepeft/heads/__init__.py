"""Heads: one file per kind, found by discovery; each reads one pooled value."""
