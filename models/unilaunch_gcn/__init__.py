"""The partitioned GCN: one training on METIS parts, the same on every number of ranks and on both frameworks."""
