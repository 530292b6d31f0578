"""What is to be measured: the request, the model, texts' lengths, batches, and one job for each worker."""
