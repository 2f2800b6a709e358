"""How the ranks of a start find and trust each other, and the peers that each then has.

Begin with `joining.py`. On a board (`board.py`) rank 0 publishes its address; each kind of launcher has its own board.
`tcp.py` and `mpi.py` are the peers. `rendezvous.py` finds the address for the framework itself, and `reaching.py` the
hosts that cannot connect to each other.
"""
