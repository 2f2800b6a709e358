"""Starting all ranks."""
