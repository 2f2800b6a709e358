"""`python -m unilaunch` and the console script `unilaunch`."""

import sys

# `python -m` puts the current folder first, where a file socket.py would replace Python's own. It becomes the last one,
# for models and backends there, until `Target.put_folder_first`. In a checkout of unilaunch it stays.
if __name__ == "__main__" and not sys.flags.safe_path and __file__ != f"{sys.path[0]}/unilaunch/__main__.py":
    sys.path[:] = [sys.path[1], *sys.path[1:], "."]

from unilaunch.cli import main  # after the lines above, on purpose

if __name__ == "__main__":
    main()
