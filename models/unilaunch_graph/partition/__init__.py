"""From a whole graph to the share of each rank."""
