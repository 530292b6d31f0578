"""Inspections of a trained delta on labelled rows, by its kinds of modules."""
