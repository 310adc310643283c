"""See `python -m experiments.gym --help`."""
