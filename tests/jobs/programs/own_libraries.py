"""Tells from which process this rank's guard was forked, its libraries' threads and its random numbers."""

import json
import os
import random
import sys
import threading
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_info


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


elsewhere: list[int] = []
thread = threading.Thread(target=lambda: elsewhere.append(torch.get_num_threads()))
thread.start()
thread.join()
pools = {pool["internal_api"]: pool["num_threads"] for pool in threadpool_info()}
found = {
    "above": _parent(os.getppid()),
    "torch": [torch.get_num_threads(), *elsewhere],
    "pools": [pools["openblas"], pools["openmp"]],
    "drawn": {"numpy": np.random.rand(), "torch": torch.rand(1).item(), "python": random.random()},  # noqa: NPY002, S311
    "variable": os.environ["OMP_NUM_THREADS"],  # noqa: TID251
}
sys.stdout.write(json.dumps(found) + "\n")
