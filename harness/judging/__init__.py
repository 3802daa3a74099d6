"""What replies are worth, and the correctness gates: from stored rows, pure."""
