"""What is measured: cells, their names and settings, sweeps of them."""
