"""A script that ends in the way that its first argument names.

Rank 1 does, once all ranks have begun; the others wait for it in vain.
"""

import os
import sys
import time
from pathlib import Path


def main(how: str) -> None:
    """End."""
    rank = int(os.environ["RANK"])  # noqa: TID251
    Path(f"began.{rank}").touch()
    if rank == 1:
        while len(list(Path().glob("began.*"))) < int(os.environ["WORLD_SIZE"]):  # noqa: TID251
            time.sleep(0.01)
        match how:
            case "raise":
                raise ValueError("broken on purpose")
            case "exit":
                sys.exit(7)
    elif how != "well":
        time.sleep(600)
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
