"""A network of your own begins in PyTorch and goes on in MindSpore, on another number of parts, as one training.

unilaunch launch -n 2 examples/resume_in_mindspore.py torch cora 20
unilaunch launch -n 3 examples/resume_in_mindspore.py mindspore cora 20
"""

import sys

import numpy as np

import unilaunch_graph as ug


def begin(name: str, epochs: int, file: str) -> None:
    """Train in PyTorch, and save weights and moments: they are the same on every rank, so rank 0 writes."""
    import torch

    torch.manual_seed(0)  # the same initial weights on every rank
    part = ug.torch.load(name)
    net = torch.nn.ModuleList([ug.torch.SAGEConv(part.num_features, 32), ug.torch.SAGEConv(32, part.num_classes)])
    optimizer, mask = torch.optim.Adam(net.parameters(), lr=0.01), part.train_mask
    for _ in range(epochs):
        optimizer.zero_grad()
        out = net[1](net[0](part.x, part).relu(), part)[mask]
        loss = ug.torch.mean(torch.nn.functional.cross_entropy(out, part.y[mask], reduction="sum"), part.num_train)
        loss.backward()
        ug.torch.sum_gradients(net)
        optimizer.step()
    if part.rank == 0:
        names = {"step": "steps", "exp_avg": "first", "exp_avg_sq": "second"}  # as `ug.mindspore.Adam` calls them
        states = optimizer.state_dict()["state"].items()  # one for each parameter
        moments = {f"{place}.{names[key]}": value for place, state in states for key, value in state.items()}
        np.savez(file, **net.state_dict(), **moments)
        print(f"PyTorch, {part.world_size} parts: loss {loss.item():.6f}")


def go_on(name: str, epochs: int, file: str) -> None:
    """Train on in MindSpore, from what PyTorch has saved: the layers have the same names in both."""
    import mindspore as ms

    part, saved = ug.mindspore.load(name), {key: ms.Parameter(value) for key, value in np.load(file).items()}
    net = ms.nn.CellList([ug.mindspore.SAGEConv(part.num_features, 32), ug.mindspore.SAGEConv(32, part.num_classes)])
    ms.load_param_into_net(net, saved)
    optimizer, mask = ug.mindspore.Adam(net.trainable_params(), 0.01), part.train_mask
    optimizer.load_state_dict(saved)

    def loss_of() -> ms.Tensor:
        out = net[1](ms.ops.relu(net[0](part.x, part)), part)[mask]
        return ug.mindspore.mean(ms.ops.cross_entropy(out, part.y[mask], reduction="none"), part.num_train)

    step = ms.value_and_grad(loss_of, None, optimizer.parameters)
    for _ in range(epochs):
        loss, gradients = step()
        optimizer(ug.mindspore.sum_gradients(gradients))
    if part.rank == 0:
        print(f"MindSpore, {part.world_size} parts: loss {float(loss):.6f}")


if __name__ == "__main__":
    {"torch": begin, "mindspore": go_on}[sys.argv[1]](sys.argv[2], int(sys.argv[3]), "checkpoint.npz")
