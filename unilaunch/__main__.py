"""`python -m unilaunch` and the console script `unilaunch`."""

import gc

# Start-up makes many objects and no garbage: without the garbage collector a rank starts 10 ms faster.
gc.disable()

from unilaunch.cli import main  # noqa: E402  (after the line above, on purpose)

if __name__ == "__main__":
    main()
