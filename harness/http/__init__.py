"""Measuring over HTTP: the client, trials, targets, and servers as children."""
