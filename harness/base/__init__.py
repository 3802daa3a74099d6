"""Two versions of fm in one run: each side's code in a child process of its own."""
