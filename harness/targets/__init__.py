"""What a run measures: our engine here, its server, servers of others."""
