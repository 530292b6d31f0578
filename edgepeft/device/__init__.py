"""This machine and others: host, limits, profiles, prediction, doctor."""
