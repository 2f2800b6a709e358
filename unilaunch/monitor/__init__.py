"""What is seen of a job as a whole: what its ranks tell, what failed first, and when it is to end."""
