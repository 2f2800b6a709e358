"""Connections over which each end proves that it knows the secret of the start: `sockets.py`, `handshake.py`."""
