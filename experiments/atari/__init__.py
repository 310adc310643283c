"""See `python -m experiments.atari --help`."""
