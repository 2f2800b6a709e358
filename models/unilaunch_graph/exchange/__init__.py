"""What ranks send each other: halo rows, or columns."""
