"""What every room may use: errors, files, locks, names."""
