"""Show a run, or two, on one HTML page."""
