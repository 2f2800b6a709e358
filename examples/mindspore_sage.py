"""GraphSAGE (Hamilton, Ying and Leskovec, NeurIPS 2017) in MindSpore, with the layer and the normalisation of `ug`.

unilaunch launch -n 2 examples/mindspore_sage.py cora 100 float64
"""

import sys

import mindspore as ms
from mindspore import Tensor, nn, ops

import unilaunch_graph as ug


class SAGE(nn.Cell):
    """Two layers."""

    def __init__(self, part: ug.mindspore.GraphPart, dtype: ms.Type) -> None:
        super().__init__()
        self.part = part
        self.first = ug.mindspore.SAGEConv(part.num_features, 32, dtype=dtype)
        self.norm = ug.mindspore.BatchNorm(32, part, dtype=dtype)
        self.last = ug.mindspore.SAGEConv(32, part.num_classes, dtype=dtype)

    def construct(self, x: Tensor, epoch: int) -> Tensor:
        """Return one score for each class. (num_owned, num_classes)"""
        x = self.norm(ops.relu(self.first(x, self.part)))
        x = ug.mindspore.dropout(x, self.part, 0.5, seed=0, step=epoch, training=self.training)
        return self.last(x, self.part)


def main(name: str = "cora", epochs: str = "100", dtype: str = "float32") -> list[float]:
    """Train; gather the scores of all nodes on rank 0, and return the loss of each epoch."""
    ms.set_seed(0)  # the same initial weights on every rank
    part = ug.mindspore.load(name)
    net, x = SAGE(part, getattr(ms, dtype)), part.x.astype(getattr(ms, dtype))
    optimizer = ug.mindspore.Adam(net.trainable_params(), learning_rate=0.01)

    def loss_of(epoch: int) -> Tensor:
        out, mask = net(x, epoch), part.train_mask
        return ug.mindspore.mean(ops.cross_entropy(out[mask], part.y[mask], reduction="none"), part.num_train)

    step, losses = ms.value_and_grad(loss_of, None, optimizer.parameters), []
    net.set_train()
    for epoch in range(int(epochs)):
        loss, gradients = step(epoch)
        optimizer(ug.mindspore.sum_gradients(gradients))
        losses.append(float(loss))
    net.set_train(False)
    scores = ug.mindspore.gather(net(x, 0), part)  # rank 0: of all nodes, in the order of the data set
    if part.rank == 0:
        print(f"loss {losses[-1]:.4f}, scores {scores.shape}")
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:])
