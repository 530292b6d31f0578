"""Backbones: one file per family, each a table of sites and weights and a graph builder."""
