"""Linear operators over all parts."""
