"""Look into a running job, from another terminal."""
