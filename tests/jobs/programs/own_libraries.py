"""Tells from which process this rank's guard was forked, its libraries' threads and its random numbers."""

import gc
import json
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_info

with ThreadPoolExecutor() as elsewhere:
    threads = [torch.get_num_threads(), elsewhere.submit(torch.get_num_threads).result()]
pools = {pool["internal_api"]: pool["num_threads"] for pool in threadpool_info()}
found = {
    "above": int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]),
    "torch": threads,
    "pools": [pools["openblas"], pools["openmp"]],
    "drawn": {"numpy": np.random.rand(), "torch": torch.rand(1).item(), "python": random.random()},  # noqa: NPY002, S311
    "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() // 1000],
    "variable": os.environ["OMP_NUM_THREADS"],
}
sys.stdout.write(json.dumps(found) + "\n")
