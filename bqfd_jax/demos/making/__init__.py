"""Making demonstrations: a planner, and a person who plays."""
