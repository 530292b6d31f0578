"""The command line: one file per verb, found by name."""
