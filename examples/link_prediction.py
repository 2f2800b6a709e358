"""Link prediction with a GCN, as PyG's example has it, on the full graph over any number of ranks.

unilaunch launch -n 2 examples/link_prediction.py Cora
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GCN
from torch_geometric.transforms import RandomLinkSplit

import unilaunch
import unilaunch_graph as ug


def write_graph(name: str, folder: Path) -> None:
    """Split the edges: those to train on are the graph; beside it the links to train on, and those to test."""
    split = RandomLinkSplit(0.05, 0.1, is_undirected=True, add_negative_train_samples=False)
    train, _, test = split(Planetoid("data", name)[0])
    torch.save((train.edge_label_index, test.edge_label_index, test.edge_label), f"{folder}.links")
    ug.from_pyg(train, folder)


def area_under_curve(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of pairs of a link and of no link that the scores put in the right order."""
    return (scores[labels == 1, None] > scores[None, labels == 0]).double().mean().item()


def main(name: str = "Cora", epochs: str = "100") -> None:
    """In each epoch, as many pairs are drawn as there are links; each rank has its share of both."""
    folder = Path(f"links-{name}")
    if unilaunch.init().rank == 0 and not folder.exists():
        write_graph(name, folder)
    part = ug.load(str(folder))
    links, test, labels = torch.load(f"{folder}.links")
    torch.manual_seed(0)  # the same weights on every rank, and by draw the same pairs
    model = ug.torch.distribute(GCN(part.num_features, 128, 2, 64), part)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    is_link = torch.arange(2 * links.shape[1], device=part.device) < links.shape[1]
    share, draw = slice(part.rank, None, part.world_size), torch.Generator().manual_seed(0)
    for _ in range(int(epochs)):
        optimizer.zero_grad()
        pairs = torch.cat([links, torch.randint(part.num_nodes, links.shape, generator=draw)], 1)[:, share]
        source, target = ug.torch.fetch(model(part.x, part.edge_index), pairs, part)
        losses = F.binary_cross_entropy_with_logits((source * target).sum(-1), is_link[share].float(), reduction="none")
        loss = ug.torch.mean(losses, len(is_link))
        loss.backward()
        ug.torch.sum_gradients(model)
        optimizer.step()
    z = ug.torch.gather(model(part.x, part.edge_index), part)  # rank 0: of all nodes
    if z is not None:
        area = area_under_curve((z[test[0]] * z[test[1]]).sum(-1), labels)
        print(f"loss {loss.item():.4f}, area under the curve {area:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
