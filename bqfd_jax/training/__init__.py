"""Loops that bring environments, replay and learner together."""
