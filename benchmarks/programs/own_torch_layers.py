"""Our own layers in PyTorch on this rank's part of a graph, trained one after the other; rank 0 writes what came out.

own_torch_layers.py DATASET FOLDER OUTPUT.npz EPOCHS KIND... The folder is the data folder, and has initial.npz with the
initial weights of each network: "gat.first.lin.weight".
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from typing_extensions import override

import unilaunch_graph as ug


def sum_of(messages: torch.Tensor, part: ug.torch.GraphPart) -> torch.Tensor:
    """Return the sum of the messages to each owned node."""
    return messages.new_zeros(part.num_owned, *messages.shape[1:]).index_add(0, part.edge_index[1], messages)


class PlainGAT(torch.nn.Module):
    """GATConv without self-loops, as a user writes it: halo, gathers, and sums over the in-edges."""

    def __init__(self, width_in: int, width_out: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width_out
        self.lin = torch.nn.Linear(width_in, heads * width_out, bias=False)
        self.att_src, self.att_dst = (torch.nn.Parameter(torch.empty(1, heads, width_out)) for _ in range(2))
        self.bias = torch.nn.Parameter(torch.empty(heads * width_out))

    @override
    def forward(self, x: torch.Tensor, part: ug.torch.GraphPart) -> torch.Tensor:
        """Return (num_owned, heads * width_out)."""
        source, target = part.edge_index
        own = self.lin(x).view(-1, self.heads, self.width)
        rows = ug.torch.halo(own, part)
        scores = (rows * self.att_src).sum(-1)[source] + (own * self.att_dst).sum(-1)[target]
        shares = functional.leaky_relu(scores, 0.25).exp()  # small scores: no maximum is taken off
        shares = shares / sum_of(shares, part)[target]
        return sum_of(shares[..., None] * rows[source], part).flatten(1) + self.bias


class WeightedMean(torch.nn.Module):
    """GraphConv of PyG: lin_rel(mean of the in-neighbours' rows times the edges' weights) + lin_root(own row)."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.lin_rel = torch.nn.Linear(width_in, width_out)
        self.lin_root = torch.nn.Linear(width_in, width_out, bias=False)

    @override
    def forward(self, x: torch.Tensor, part: ug.torch.GraphPart) -> torch.Tensor:
        """Return (num_owned, width_out)."""
        messages = ug.torch.halo(x, part)[part.edge_index[0]]
        if part.edge_weight is not None:
            messages = messages * part.edge_weight.double()[:, None]
        degrees = torch.bincount(part.edge_index[1], minlength=part.num_owned).clamp(min=1)
        out: torch.Tensor = self.lin_rel(sum_of(messages, part) / degrees[:, None]) + self.lin_root(x)
        return out


def layers(kind: str, width: int, classes: int) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Return the two layers of a network of that kind; the first has 16 columns."""
    gat, sage = ug.torch.GATConv, ug.torch.SAGEConv
    match kind:
        case "gat":
            return gat(width, 8, heads=2), gat(16, classes, heads=3, concat=False)
        case "plain":
            return PlainGAT(width, 8, 2), PlainGAT(16, classes, 1)
        case "sage":
            return sage(width, 16), sage(16, classes)
        case "edges":
            first = gat(width, 8, heads=2, edge_dim=3, residual=True)
            return first, gat(16, classes, heads=2, concat=False, edge_dim=3, fill_value=0.5)
        case "project":
            return sage(width, 16, normalize=True, project=True), sage(16, classes, "add", project=True, bias=False)
        case _:
            return WeightedMean(width, 16), WeightedMean(16, classes)


class Net(torch.nn.Module):
    """Two layers; between them ELU, batch normalisation and dropout."""

    def __init__(self, kind: str, part: ug.torch.GraphPart) -> None:
        super().__init__()
        self.first, self.last = layers(kind, part.num_features, part.num_classes)
        self.norm = ug.torch.BatchNorm(16, part)

    @override
    def forward(self, x: torch.Tensor, part: ug.torch.GraphPart, epoch: int) -> torch.Tensor:
        """Return one score for each class."""
        x = self.norm(functional.elu(self.first(x, part)))
        x = ug.torch.dropout(x, part, 0.3, seed=7, step=epoch, training=self.training)
        scores: torch.Tensor = self.last(x, part)
        return scores


def train(kind: str, part: ug.torch.GraphPart, initial: dict[str, Any], epochs: int) -> dict[str, Any]:
    """Train as on one process; return the losses, the final state and the scores of all nodes."""
    net = Net(kind, part)
    state = {name: torch.from_numpy(initial[f"{kind}.{name}"]) for name in net.state_dict() if "num_b" not in name}
    net.load_state_dict(state, strict=False)
    optimizer = torch.optim.Adam(net.parameters(), 0.005, weight_decay=5e-4)
    x, losses = part.x.double(), []
    for epoch in range(epochs):
        optimizer.zero_grad()
        out, mask = net(x, part, epoch), part.train_mask
        loss = functional.cross_entropy(out[mask], part.y[mask], reduction="sum")
        loss = ug.torch.mean(loss, part.num_train)
        torch.autograd.backward(loss)
        ug.torch.sum_gradients(net)
        optimizer.step()
        losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        scores = ug.torch.gather(net(x, part, 0), part)
    final = {f"{kind}.state.{name}": net.state_dict()[name].numpy() for name in state}
    return {f"{kind}.losses": losses, f"{kind}.scores": scores, **final}


def main() -> None:
    """Train each kind."""
    dataset, folder, output, epochs, *kinds = sys.argv[1:]
    torch.set_default_dtype(torch.float64)
    initial = dict(np.load(Path(folder, "initial.npz")))
    part = ug.load(dataset, data_dir=folder)
    found = {key: value for kind in kinds for key, value in train(kind, part, initial, int(epochs)).items()}
    if part.rank == 0:
        np.savez(output, **found)


if __name__ == "__main__":
    main()
