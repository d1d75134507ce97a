"""Two sets of processes in, a verdict with its reasons out."""
