"""This machine and others: what it is, limits on a program, profiles, predicted times, doctor."""
