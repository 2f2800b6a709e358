"""`python -m unilaunch` and the console script `unilaunch`."""

import gc
import sys

# `python -m` puts the current folder first, where a file socket.py would replace Python's own. It becomes the last one,
# for models and backends there, until `Target.put_folder_first`. In a checkout of unilaunch it stays.
if __name__ == "__main__" and not sys.flags.safe_path and __file__ != f"{sys.path[0]}/unilaunch/__main__.py":
    sys.path[:] = [sys.path[1], *sys.path[1:], "."]

# Start-up makes many objects and no garbage: without the garbage collector a rank starts 10 ms faster.
gc.disable()

from unilaunch.cli import main  # noqa: E402  (after the line above, on purpose)

if __name__ == "__main__":
    main()
