"""Train DGL's GCN on the benchmark graph in one process of two threads; print figures as JSON. For epoch.py.

    PYTHON benchmarks/dgl_epoch.py GRAPH.npz EPOCHS DROPOUT {tutorial,same,ahead}

The forms are epoch.py's.
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
    path, epochs, dropout, form = sys.argv[1:]
    arrays = np.load(path)
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
    if form == "ahead":
        rows = GraphConv(widths[0], widths[0], norm="both", weight=False, bias=False)(graph, rows)
        net[0] = torch.nn.Linear(widths[0], widths[1], bias=False)
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    seconds, losses = [], []
    for _ in range(int(epochs)):
        begin = time.perf_counter()
        adam.zero_grad()
        hidden = rows
        for depth, convolution in enumerate(net):
            if depth or form == "same":
                hidden = F.dropout(hidden, float(dropout))
            hidden = convolution(graph, hidden) if depth or form != "ahead" else convolution(hidden)
            hidden = hidden.relu() if depth < len(net) - 1 else hidden
        loss = F.cross_entropy(hidden[train], labels[train])
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        losses.append(float(loss))
        seconds.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    median = statistics.median(seconds[1:])
    print(json.dumps({"seconds_per_epoch": median, "loss": losses, "ranks": [{"peak_memory_bytes": peak}]}))


if __name__ == "__main__":
    main()
