"""Rank 0 fetches rows once more than rank 1, as with unequal numbers of batches; then both sum something up."""

import sys
from typing import Any

import numpy as np

import unilaunch_graph as ug

backend: Any = getattr(ug, sys.argv[1])
part = backend.load("sbm")
backend.barrier(part)
for step in range(3 - part.rank):
    backend.fetch(part.x, np.array([step]), part)
backend.sum_ranks(part.x.sum(), part)
