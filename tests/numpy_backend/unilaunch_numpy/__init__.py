"""A backend in numpy alone, for tests: a distribution of its own, found through PYTHONPATH and its entry point."""
