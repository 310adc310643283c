"""Many runs: the grid that they are cells of, what becomes of each, and Ray that runs them."""
