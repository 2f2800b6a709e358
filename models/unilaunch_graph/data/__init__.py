"""Whole graphs: where they come from, and what is checked."""
