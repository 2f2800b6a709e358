"""A run as one page that people look at."""
