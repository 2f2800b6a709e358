"""What the ranks of a job wrote, as one story."""
