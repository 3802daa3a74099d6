"""Calibration of the harness: what is known beforehand, and what the verdicts make of it."""
