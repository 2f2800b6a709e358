"""Train networks of PyG on this rank's part of a graph: own_torch.py DATASET DATA_DIR OUTPUT.npz EPOCHS CASE...

A case is a kind of layer ("gat"), with "+ddp" for DistributedDataParallel in place of sum_gradients, or "+accumulated"
for two backward passes before each step. Rank 0 writes what came out.
"""

import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import BatchNorm, GATConv, GCNConv, GINConv, MessagePassing, SAGEConv, TransformerConv
from torch_geometric.utils import add_self_loops, degree
from typing_extensions import override

import unilaunch_graph as ug


class Tutorial(MessagePassing):  # type: ignore[misc]  # as PyG's own page on message passing has a user write GCN
    def __init__(self, width: int, out: int) -> None:
        super().__init__(aggr="add")
        self.lin = torch.nn.Linear(width, out)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        row, col = edge_index
        scale = degree(col, x.size(0), dtype=x.dtype).pow(-0.5)
        out: torch.Tensor = self.propagate(edge_index, x=self.lin(x), norm=scale[row] * scale[col])
        return out

    def message(self, x_j: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        return norm.view(-1, 1) * x_j

    def update(self, aggr_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return aggr_out + 0.1 * x  # a little of the node's own row


LAYERS: dict[str, Any] = {
    "gat": lambda a, b: GATConv(a, b // 2 if b % 2 == 0 else b, heads=2 if b % 2 == 0 else 1),
    "sage": SAGEConv,
    "gin": lambda a, b: GINConv(torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.ReLU(), torch.nn.Linear(b, b))),
    "transformer": TransformerConv,
    "gcn": GCNConv,
    "own": Tutorial,
}


class Net(torch.nn.Module):
    def __init__(self, kind: str, width: int, out: int) -> None:
        super().__init__()
        self.first, self.last = LAYERS[kind](width, 16), LAYERS[kind](16, out)
        # Before the activation it would leave the first bias no gradient, and Adam would follow rounding errors.
        self.norm = BatchNorm(16) if kind == "sage" else torch.nn.Identity()

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.norm(functional.elu(self.first(x, edge_index))), edge_index)
        return scores


def train(case: str, part: ug.torch.GraphPart, epochs: int) -> dict[str, Any]:
    kind, _, way = case.partition("+")
    torch.manual_seed(part.rank)  # the ranks' own initial weights differ: distribute takes rank 0's
    model = ug.torch.distribute(Net(kind, part.num_features, part.num_classes), part)
    called = DistributedDataParallel(model) if way == "ddp" else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    halves = torch.arange(part.num_owned) % 2 == 0
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        total = 0.0
        for chosen in (halves, ~halves) if way == "accumulated" else (torch.ones_like(halves),):
            mask = part.train_mask & chosen
            out = called(part.x.double(), part.edge_index)
            loss = ug.torch.mean(functional.cross_entropy(out[mask], part.y[mask], reduction="sum"), part.num_train)
            torch.autograd.backward(loss * part.world_size if way == "ddp" else loss)
            total += loss.item()
        if way != "ddp":
            ug.torch.sum_gradients(model)
        optimizer.step()
        scheduler.step()
        losses.append(total)
    model.eval()
    with torch.no_grad():
        scores = ug.torch.gather(model(part.x.double(), part.edge_index), part)
    state = {f"{case}.state.{name}": value.numpy() for name, value in model.state_dict().items()}
    return {f"{case}.losses": losses, f"{case}.scores": scores, **state}


if __name__ == "__main__":
    dataset, data_dir, output, epochs, *cases = sys.argv[1:]
    torch.set_default_dtype(torch.float64)
    part = ug.load(dataset, data_dir=data_dir)
    if "+ddp" in "".join(cases):
        dist.init_process_group("gloo")
    found = {name: value for case in cases for name, value in train(case, part, int(epochs)).items()}
    if part.rank == 0:
        np.savez(output, **found)
    if dist.is_initialized():
        dist.destroy_process_group()
