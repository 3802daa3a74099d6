"""The audits of the lanes on an engine in this process: token identity, stress, soak."""
