"""Kinds of task: one file a kind, found by discovery; each says all that the package asks of one."""
