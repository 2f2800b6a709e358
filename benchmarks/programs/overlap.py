"""How much of a halo exchange is hidden behind the product of the owned rows; on 2 ranks. For scaling.py.

Prints, on rank 0: 1 - (time waited while multiplying) / (time of the exchange alone).
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from unilaunch.rendezvous.mpi import MpiCollectives
from unilaunch_gcn.aggregation import aggregation_over_halo
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.store import Partition, read_part

comm = MPI.COMM_WORLD
folder, home = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
part = read_part(Partition(folder, next((folder / "data").iterdir()).stem, home), comm.rank, comm.size)
meter = Meter()
halo = HaloExchange(part, MpiCollectives(comm), meter)
operator = aggregation_over_halo(part, halo, 1, "gcn", np.dtype(np.float32))
rows = np.random.default_rng(comm.rank).random((part.num_owned, 64), dtype=np.float32)
alone, waited = [], []
for _ in range(12):
    comm.Barrier()
    begin = time.perf_counter()
    halo.begin(rows).wait()
    alone.append(time.perf_counter() - begin)
    comm.Barrier()
    meter.read()
    operator.matmat(rows)
    waited.append(meter.read()[0])
if comm.rank == 0:
    print(1 - statistics.median(waited[2:]) / statistics.median(alone[2:]), flush=True)
