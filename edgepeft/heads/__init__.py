"""Heads: one file per kind, found by discovery; each reads a pooled value, or every token's last state."""
