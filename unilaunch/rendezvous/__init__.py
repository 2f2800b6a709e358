"""How the ranks of a start find and trust each other, and the peers that each then has.

Begin with `rendezvous.py`. On a board (`boards.py`) rank 0 publishes its address; each kind of launcher has its own.
`tcp.py` and `mpi.py` are the peers, `alone.py` those of a single rank; `group.py` finds ranks that a program has
connected itself.
"""
