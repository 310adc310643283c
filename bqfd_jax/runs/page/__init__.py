"""One page about many runs: what was run, what came of it, what is missing."""
