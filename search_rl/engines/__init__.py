"""One small file for each way to sample tokens."""
