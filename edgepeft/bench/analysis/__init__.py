"""Where time and operations go: figures counted from graphs, profiles by operator, predictions."""
