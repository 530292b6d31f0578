"""Reverse-mode differentiation of our own graphs: one rule for each operator, found by discovery."""
