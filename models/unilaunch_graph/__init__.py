"""Graphs over many ranks: data sets, METIS parts, the halo exchange, and exact operators."""
