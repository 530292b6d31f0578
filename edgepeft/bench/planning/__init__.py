"""The plan of a benchmark: request, model, lengths of texts, batches, and one job for each worker."""
