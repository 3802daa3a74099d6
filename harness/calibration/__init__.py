"""Calibration of the harness: engines of known speed, and what the verdicts make of them."""
