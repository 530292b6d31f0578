"""Heads, found by discovery; each reads one pooled value."""
