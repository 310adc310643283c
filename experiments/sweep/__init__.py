"""See `python -m experiments.sweep --help`."""
