"""Sweeps: a plan's grid of training runs, computed once each, and the table that they make."""
