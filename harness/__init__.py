"""Runs cells on workloads and keeps what it saw."""
