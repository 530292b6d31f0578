"""What a suite compares with, made from the same weights.  ``python -m bench.peers NAME FOLDER OUT``."""
