"""Train a network of a user's on all ranks, each time with another mistake; say on each rank what it was told.

own_mistakes.py [MISTAKE...]: all by default but "not distributed", which ends the job.
"""

import copy
import sys
from collections.abc import Callable

import torch
from torch.nn import functional as F  # noqa: N812
from torch_geometric.nn import GCN

import unilaunch_graph as ug
from unilaunch.errors import SpecError

part = ug.load("sbm")
#: How each takes the features,
FEATURES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "own scale": lambda x: (x - x.mean(0)) / (x.std(0) + 1e-9),
    "rows of length 1": F.normalize,
    "dropout of the features": lambda x: F.dropout(x, 0.25),
}
#: and how it makes the loss, with the numbers of labels on this rank and on all.
LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "a mean of a mean": lambda out, y, *_: F.cross_entropy(out, y),
    "a mean by hand": lambda out, y, *_: -F.log_softmax(out, 1).gather(1, y[:, None]).mean(),
    "a smooth mean": lambda out, y, *_: F.cross_entropy(out, y, label_smoothing=0.1),
    "a mean and a penalty": lambda out, y, *_: F.cross_entropy(out, y) + 1e-3 * out.square().sum(),
    "none": lambda out, y, *_: F.cross_entropy(out, y) * len(y),
    "own class weights": lambda out, y, own, _: F.cross_entropy(out, y, weight=1 / (1.0 + own), reduction="sum"),
    "class weights": lambda out, y, _, of_all: F.cross_entropy(out, y, weight=1 / (1.0 + of_all), reduction="sum"),
}
MISTAKES = (
    *LOSSES, "no sum_gradients", "another start", "another rate", "steps on rank 0", "another state", "own count",
    *FEATURES,
)  # fmt: skip


def train(mistake: str) -> None:
    """Four steps, with an evaluation after each; then the best weights are loaded."""
    torch.manual_seed(0)
    model = GCN(part.num_features, 8, 2, part.num_classes)
    if mistake == "not distributed":
        model(part.x, part.edge_index)
    model = ug.torch.distribute(model, part)
    if mistake == "another start":
        torch.manual_seed(part.rank)
        for weight in model.parameters():
            torch.nn.init.normal_(weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (1 + part.rank * (mistake == "another rate")))
    first = copy.deepcopy(model.state_dict())
    x, mask = FEATURES[mistake](part.x) if mistake in FEATURES else part.x, part.train_mask
    y, count = part.y[mask], int(mask.sum()) if mistake == "own count" else part.num_train
    for _ in range(4):
        optimizer.zero_grad()
        out, own = model(x, part.edge_index)[mask], torch.bincount(y, minlength=part.num_classes)
        of_all = ug.torch.sum_ranks(own)
        loss = LOSSES[mistake](out, y, own, of_all) if mistake in LOSSES else F.cross_entropy(out, y, reduction="sum")
        torch.autograd.backward(ug.torch.mean(loss, count))
        if mistake != "no sum_gradients":
            ug.torch.sum_gradients(model)
        if mistake != "steps on rank 0" or part.rank == 0:
            optimizer.step()
        with torch.no_grad():
            model(part.x, part.edge_index)
    model.load_state_dict(first if mistake != "another state" or part.rank == 0 else copy.deepcopy(model.state_dict()))
    with torch.no_grad():
        model(part.x, part.edge_index)


if part.world_size > 1:
    logit = torch.nn.Parameter(torch.zeros(1))
    torch.autograd.backward(logit * part.x.mean())
    ug.torch.sum_gradients([logit])  # a line in the log says what is missing
for mistake in sys.argv[1:] or MISTAKES:
    try:
        train(mistake)
        told = "nothing"
    except SpecError as error:
        told = str(error)
    sys.stdout.write(f"{part.rank}: {mistake}: {told}\n")
    sys.stdout.flush()
