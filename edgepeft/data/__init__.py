"""What a run learns from, without torch: rows in parts, batches in order, the rate of each step."""
