"""What stands above the ranks of a host: the launcher's children, and the one process that supervises the ranks."""
