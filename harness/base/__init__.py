"""`fm gate --base`: two versions of fm in one run, each in a child process of its own."""
