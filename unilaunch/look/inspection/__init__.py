"""`unilaunch status` and `unilaunch stacks`: look into a running job from another terminal.

Begin with `asking.py`, which asks the monitor at its socket.
"""
