"""What a suite compares with, made from the same weights.  ``python -m edgepeft.bench.peers.NAME FOLDER OUT``."""
