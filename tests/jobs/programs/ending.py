"""Rank 1 ends as the first argument says, once all ranks have begun; the others wait for it in vain."""

import os
import sys
import time
from pathlib import Path

how, rank = sys.argv[1], os.environ["RANK"]
Path(f"began.{rank}").touch()
if rank == "1":
    while len(list(Path().glob("began.*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
    if how == "raise":
        raise ValueError("broken on purpose")
    sys.exit(7 if how == "exit" else 0)
elif how != "well":
    time.sleep(600)
