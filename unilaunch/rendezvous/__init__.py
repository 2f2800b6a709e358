"""How ranks and agents find and trust each other, and what they say to each other then.

Begin with `joining.py`. On a board (`board.py`) rank 0 publishes its address; each kind of launcher has its own board.
`sockets.py` accepts connections, `handshake.py` proves the secret. `tcp.py` and `mpi.py` are the peers that a rank has
then, and `agreement.py` lets all go on, or none. `rendezvous.py` finds the address for the framework itself.
"""
