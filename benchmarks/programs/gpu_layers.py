"""Compare PyG's layers on a part of a device with plain PyG on the CPU, and print the differences. For gpu_all.sh.

    python benchmarks/programs/gpu_layers.py DEVICE FOLDER
    unilaunch launch -n 2 --device cpu benchmarks/programs/gpu_layers.py ...

GCN, SAGE and GAT under `ug.torch.distribute`, and unilaunch's own SAGE and GAT: a few steps of Adam; the largest
relative difference of a loss, in float64 to 1e-10 and in float32 to 1e-5. `fetch` and `gather`: the same rows to the
bit. `check`: its verdict, and its seconds with everything on the device. Each prints one JSON object; a case that
fails says why, and the others go on. Several ranks share the device, and exchange over gloo. FOLDER holds the graph.
Never run on a GPU so far.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch_geometric import nn
from typing_extensions import override

import unilaunch_graph as ug
from unilaunch.errors import SpecError
from unilaunch.interfaces.backend import TensorCollectives
from unilaunch_graph.loading import load_part
from unilaunch_graph.torch.part import make_part
from unilaunch_graph.torch.ranks import Ranks

STEPS, WIDTH = 5, 32
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5}
Layer = Callable[[int, int], torch.nn.Module]
PYG: dict[str, Layer] = {
    "GCN": nn.GCNConv,
    "SAGE": nn.SAGEConv,
    "GAT": lambda width, out: nn.GATConv(width, out // 2, heads=2),
}
OWN: dict[str, tuple[str, Layer]] = {
    "own SAGE": ("SAGE", ug.torch.SAGEConv),
    "own GAT": ("GAT", lambda width, out: ug.torch.GATConv(width, out // 2, heads=2)),
}
Figures = dict[str, Any]


class Net(torch.nn.Module):
    """Two layers of a kind, as PyG's examples write them."""

    def __init__(self, layer: Layer, width: int, classes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = layer(width, WIDTH), layer(WIDTH, classes)

    @override
    def forward(self, rows: torch.Tensor, edges: Any) -> torch.Tensor:
        """Return the logits."""
        scores: torch.Tensor = self.second(F.elu(self.first(rows, edges)), edges)
        return scores


class Centred(Net):
    """Not exact on parts: the mean is of a rank's own rows."""

    @override
    def forward(self, rows: torch.Tensor, edges: Any) -> torch.Tensor:
        """Return the logits."""
        return super().forward(rows - rows.mean(0), edges)


class Whole:
    """The whole graph on the CPU, as PyG takes it.

    Args:
        path: The graph.
        dtype: Type of the rows.
    """

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        arrays = np.load(path)
        targets = np.repeat(np.arange(len(arrays["y"])), np.diff(arrays["indptr"]))
        self.edge_index = torch.from_numpy(np.stack((arrays["indices"].astype(np.int64), targets)))
        self.x, self.y = torch.from_numpy(arrays["x"]).to(dtype), torch.from_numpy(arrays["y"])
        self.train = torch.from_numpy(arrays["train_mask"])

    def losses(self, layer: Layer, classes: int) -> list[float]:
        """Return the losses of plain PyG."""
        net = Net(layer, self.x.shape[1], classes).to(self.x.dtype)

        def loss() -> torch.Tensor:
            return F.cross_entropy(net(self.x, self.edge_index)[self.train], self.y[self.train])

        return _train(net, loss, lambda: None)


def main() -> None:
    """Print one JSON object for each case."""
    device, folder = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from graphs import make_graph

    size, rank = (int(os.environ.get(name, least)) for name, least in (("WORLD_SIZE", "1"), ("RANK", "0")))  # noqa: TID251
    if size > 1:
        dist.init_process_group("gloo")
        path = make_graph(Path(folder, f"rank.{rank}"), 2000, 64)
    else:
        path = make_graph(Path(folder), 2000, 64)
    for name, case in _cases(path, device, size):
        begin = time.perf_counter()
        try:
            figures = case()
        except Exception as error:  # noqa: BLE001  (of any kind: the other cases are worth knowing too)
            figures = {"failed": f"{type(error).__name__}: {error}".split("\n")[0]}
        if rank == 0:
            seconds = round(time.perf_counter() - begin, 3)
            print(
                json.dumps({"layers": name, "ranks": size, "device": device, **figures, "seconds": seconds}), flush=True
            )
    if size > 1:
        dist.destroy_process_group()


def _cases(path: Path, device: str, size: int) -> Iterator[tuple[str, Callable[[], Figures]]]:
    """Give the name of each case, and what returns its figures."""
    for dtype in LIMITS:
        part = load(path, device, size, dtype)
        whole = Whole(path, dtype)
        kind = str(dtype).removeprefix("torch.")
        for name, layer in PYG.items():
            yield f"{name} {kind}", partial(losses_of, layer, layer, part, whole)
        for name, (of_pyg, layer) in OWN.items():
            yield f"{name} {kind}", partial(losses_of, layer, PYG[of_pyg], part, whole)
    yield "fetch, gather", lambda: fetched(part, whole)
    yield "check", lambda: checked(part)


def load(path: Path, device: str, size: int, dtype: torch.dtype) -> ug.torch.GraphPart:
    """Return this rank's part, on the device. Ranks that share a GPU bring it themselves: placement refuses that."""
    options: dict[str, Any] = {"partition_dir": path.parents[size > 1] / "parts", "normalize_features": False}
    if size == 1 or device == "cpu":
        return ug.torch.load(path, device=device, dtype=dtype, **options)
    part, member = load_part(path, "cpu", options)
    ranks = Ranks(member.world.rank, size, TensorCollectives(dist), torch.device(device))
    return make_part(part, ranks, dtype, keeps_rows=False)


def losses_of(
    layer: Layer, plain: Layer,
    part: ug.torch.GraphPart, whole: Whole,
) -> Figures:  # fmt: skip
    """Return the largest relative difference of a loss from plain PyG's, and its limit."""
    net: torch.nn.Module = Net(layer, part.num_features, part.num_classes).to(part.x.device, part.x.dtype)
    edges: Any = part  # of unilaunch's own layers
    if layer in PYG.values():
        net, edges = ug.torch.distribute(net, part), part.edge_index

    def loss() -> torch.Tensor:
        scores = net(part.x, edges)[part.train_mask]
        summed = F.cross_entropy(scores, part.y[part.train_mask], reduction="sum")
        total: torch.Tensor = ug.torch.mean(summed, part.num_train, part)
        return total

    expected = np.array(whole.losses(plain, part.num_classes))
    found = np.array(_train(net, loss, lambda: ug.torch.sum_gradients(net)))
    beside = float(np.abs(found / expected - 1).max())
    limit = LIMITS[part.x.dtype]
    return {"beside": beside, "limit": limit, "kept": beside <= limit}


def _train(net: torch.nn.Module, loss_of: Callable[[], torch.Tensor], summed: Callable[[], object]) -> list[float]:
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for _ in range(STEPS):
        adam.zero_grad()
        loss = loss_of()
        torch.autograd.backward(loss)
        summed()
        adam.step()
        losses.append(loss.item())
    return losses


def fetched(part: ug.torch.GraphPart, whole: Whole) -> Figures:
    """Return whether rows of any nodes are those of the whole graph, and whether rank 0 gathers all of them."""
    nodes = torch.from_numpy(np.random.default_rng(part.rank).integers(0, part.num_nodes, 500)).to(part.device)
    rows = ug.torch.fetch(part.x, nodes, part).cpu()
    gathered = ug.torch.gather(part.x, part)
    is_whole = gathered is None or torch.equal(gathered.cpu(), whole.x)
    return {"kept": torch.equal(rows, whole.x[nodes.cpu()]) and is_whole}


def checked(part: ug.torch.GraphPart) -> Figures:
    """Return whether the check by numbers lets an exact model pass and refuses one that is not exact."""
    exact, wrong = (
        kind(PYG["GAT"], part.num_features, part.num_classes).to(part.x.device, part.x.dtype) for kind in (Net, Centred)
    )
    begin = time.perf_counter()
    ug.torch.check(exact, part, part.x, part.edge_index)
    seconds = time.perf_counter() - begin
    try:
        ug.torch.check(wrong, part, part.x, part.edge_index)
    except SpecError as error:
        return {"kept": True, "check_seconds": round(seconds, 3), "refused": str(error).split("\n")[0][:200]}
    return {"kept": False, "check_seconds": round(seconds, 3)}


if __name__ == "__main__":
    main()
