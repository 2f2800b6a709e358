"""Being one rank of a job."""
