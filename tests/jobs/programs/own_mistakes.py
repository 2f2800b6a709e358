"""Train a network of a user's on all ranks, each time with another mistake; say on each rank what it was told.

own_mistakes.py [MISTAKE...]: all by default but "not distributed", which ends the job.
"""

import copy
import sys
from collections.abc import Callable

import torch
from torch.nn import functional
from torch_geometric.nn import GCN

import unilaunch_graph as ug
from unilaunch.errors import SpecError

part = ug.load("sbm")
MISTAKES = (
    "none", "no sum_gradients", "another start", "another rate", "steps on rank 0", "another state", "a mean of a mean",
    "a mean by hand", "a smooth mean", "a mean and a penalty", "own scale", "own class weights", "own count",
    "class weights", "rows of length 1", "dropout of the features",
)  # fmt: skip


def _features(mistake: str) -> torch.Tensor:
    x: torch.Tensor = part.x
    match mistake:
        case "own scale":
            return (x - x.mean(0)) / (x.std(0) + 1e-9)
        case "rows of length 1":
            return functional.normalize(x)
        case "dropout of the features":
            return functional.dropout(x, 0.25)
    return x


def _loss(mistake: str, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    counts = torch.bincount(y, minlength=part.num_classes)
    of_all = ug.torch.sum_ranks(counts)
    losses: dict[str, Callable[[], torch.Tensor]] = {
        "a mean of a mean": lambda: functional.cross_entropy(out, y),
        "a mean by hand": lambda: -functional.log_softmax(out, 1).gather(1, y[:, None]).mean(),
        "a smooth mean": lambda: functional.cross_entropy(out, y, label_smoothing=0.1),
        "a mean and a penalty": lambda: functional.cross_entropy(out, y) + 1e-3 * out.square().sum(),
        "none": lambda: functional.cross_entropy(out, y) * len(y),
        "own class weights": lambda: functional.cross_entropy(out, y, weight=1 / (1.0 + counts), reduction="sum"),
        "class weights": lambda: functional.cross_entropy(out, y, weight=1 / (1.0 + of_all), reduction="sum"),
    }
    return losses.get(mistake, lambda: functional.cross_entropy(out, y, reduction="sum"))()


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
    rate = 0.01 * (1 + part.rank * (mistake == "another rate"))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    first = copy.deepcopy(model.state_dict())
    x = _features(mistake)
    for _ in range(4):
        optimizer.zero_grad()
        mask = part.train_mask
        count = int(mask.sum()) if mistake == "own count" else part.num_train
        loss = ug.torch.mean(_loss(mistake, model(x, part.edge_index)[mask], part.y[mask]), count)
        torch.autograd.backward(loss)
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
