"""Train DGL's GCN on the benchmark graph in one process of two threads; print figures as JSON. For epoch.py.

    PYTHON benchmarks/dgl_epoch.py GRAPH.npz EPOCHS

PYTHON is one of an environment of its own, with dgl 2.1.0 (`pip install --no-deps dgl==2.1.0 networkx psutil requests
tqdm`): its wheels ended with torch 2.2. What of it does not load beside a newer torch is left out; it is not used here.
"""

import json
import resource
import statistics
import sys
import time
import types
from importlib.machinery import ModuleSpec
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

for name in ("dgl.graphbolt", "pandas"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__spec__ = ModuleSpec(name, None)
import dgl  # noqa: E402
from dgl.nn.pytorch import GraphConv  # noqa: E402


def main() -> None:
    """Train and print."""
    assert torch.get_num_threads() == 2
    arrays = np.load(sys.argv[1])
    count = len(arrays["y"])
    graph: Any = dgl.graph(
        ("csc", (torch.from_numpy(arrays["indptr"]).int(), torch.from_numpy(arrays["indices"]).int(), [])),
        num_nodes=count, idtype=torch.int32,
    )  # fmt: skip
    graph = dgl.add_self_loop(graph)
    graph.create_formats_()
    rows, labels = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]).long()
    train = torch.from_numpy(arrays["train_mask"])
    widths = [rows.shape[1], 128, 128, int(labels.max()) + 1]
    net = torch.nn.ModuleList([GraphConv(a, b, norm="both", bias=False) for a, b in pairwise(widths)])
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    seconds, losses = [], []
    for _ in range(int(sys.argv[2])):
        begin = time.perf_counter()
        adam.zero_grad()
        hidden = rows
        for convolution in list(net)[:-1]:
            hidden = convolution(graph, hidden).relu()
        loss = F.cross_entropy(net[-1](graph, hidden)[train], labels[train])
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        losses.append(float(loss))
        seconds.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    median = statistics.median(seconds[1:])
    print(json.dumps({"seconds_per_epoch": median, "loss": losses, "ranks": [{"peak_memory_bytes": peak}]}))


if __name__ == "__main__":
    main()
