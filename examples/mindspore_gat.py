"""GAT (Velickovic et al., ICLR 2018) written as a plain nn.Cell, on the full graph over any number of ranks.

unilaunch launch -n 2 examples/mindspore_gat.py cora 200 float64
"""

import sys

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import XavierUniform, initializer

import unilaunch_graph as ug


class Attention(nn.Cell):
    """One layer: the rows of the halo nodes come from the ranks that own them; all else is MindSpore as usual."""

    def __init__(self, width: int, out: int, heads: int, dtype: ms.Type) -> None:
        super().__init__()
        self.lin = nn.Dense(width, heads * out, XavierUniform(), has_bias=False, dtype=dtype)
        self.att_src, self.att_dst = (Parameter(initializer(XavierUniform(), (1, heads, out), dtype)) for _ in range(2))

    def construct(self, x: Tensor, part: ug.mindspore.GraphPart, epoch: int) -> Tensor:
        """(num_owned, width) -> (num_owned, heads, out); epoch 0 is the evaluation, which drops nothing."""
        x = ug.mindspore.dropout(x, part, 0.6, seed=0, step=epoch, layer=x.shape[1], training=epoch > 0)
        j, i = part.edge_index  # messages from j to i
        h = self.lin(x).reshape(-1, *self.att_src.shape[1:])
        rows = ug.mindspore.halo(h, part)
        scores = ops.gather((rows * self.att_src).sum(-1), j, 0) + ops.gather((h * self.att_dst).sum(-1), i, 0)
        shares = ug.mindspore.segment_softmax(ops.maximum(scores, scores / 5), part)  # 0.2 would be a float32
        return ug.mindspore.segment_sum(shares.expand_dims(-1) * ops.gather(rows, j, 0), part)


def main(name: str = "cora", epochs: str = "200", dtype: str = "float32") -> list[float]:
    """Train; say how many test nodes are right, and return the loss of each epoch."""
    ms.set_seed(0)  # the same initial weights on every rank
    part = ug.mindspore.load(name)
    x, mask = part.x.astype(getattr(ms, dtype)), part.train_mask
    net = nn.CellList([Attention(x.shape[1], 8, 8, x.dtype), Attention(64, part.num_classes, 1, x.dtype)])
    optimizer = ug.mindspore.Adam(net.trainable_params(), 0.005, weight_decay=5e-4)

    def scores(epoch: int) -> Tensor:
        return net[1](ops.elu(net[0](x, part, epoch).reshape(-1, 64)), part, epoch).squeeze(1)

    def loss_of(epoch: int) -> Tensor:
        return ug.mindspore.mean(ops.cross_entropy(scores(epoch)[mask], part.y[mask], reduction="none"), part.num_train)

    step, losses = ms.value_and_grad(loss_of, None, optimizer.parameters), []
    for epoch in range(1, int(epochs) + 1):
        loss, gradients = step(epoch)
        optimizer(ug.mindspore.sum_gradients(gradients))
        losses.append(float(loss))
    accuracy = ug.mindspore.mean((scores(0).argmax(1) == part.y)[part.test_mask], part.num_test)
    if part.rank == 0:
        print(f"loss {losses[-1]:.4f}, test accuracy {float(accuracy):.3f}")
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:])
