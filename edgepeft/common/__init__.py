"""What every package may use: errors, files, locks, names."""
