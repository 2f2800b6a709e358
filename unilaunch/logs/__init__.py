"""Show what the ranks of a job wrote."""
