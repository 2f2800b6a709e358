"""GAT (Velickovic et al., ICLR 2018) written as a plain nn.Cell, on the full graph over any number of ranks.

unilaunch launch -n 2 examples/mindspore_gat.py cora
"""

import sys

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import XavierUniform, initializer

import unilaunch_graph as ug


class Attention(nn.Cell):
    """One layer: the rows of the halo nodes come from the ranks that own them; all else is MindSpore as usual."""

    def __init__(self, width_in: int, width_out: int, heads: int) -> None:
        super().__init__()
        self.lin = nn.Dense(width_in, heads * width_out, XavierUniform(), has_bias=False)
        self.att_src, self.att_dst = (Parameter(initializer(XavierUniform(), (1, heads, width_out))) for _ in range(2))

    def construct(self, x: Tensor, part: ug.mindspore.GraphPart, epoch: int) -> Tensor:
        """(num_owned, width_in) -> (num_owned, heads, width_out); epoch 0 is the evaluation, which drops nothing."""
        x = ug.mindspore.dropout(x, part, 0.6, seed=0, step=epoch, layer=x.shape[1], training=epoch > 0)
        source, target = part.edge_index
        own = self.lin(x).reshape(-1, *self.att_src.shape[1:])
        rows = ug.mindspore.halo(own, part)
        of_source, of_target = (rows * self.att_src).sum(-1), (own * self.att_dst).sum(-1)
        scores = ops.gather(of_source, source, 0) + ops.gather(of_target, target, 0)
        shares = ug.mindspore.segment_softmax(ops.leaky_relu(scores, 0.2), part)
        return ug.mindspore.segment_sum(shares.expand_dims(-1) * ops.gather(rows, source, 0), part)


def main(name: str = "cora", epochs: str = "200") -> None:
    """Train, and say how many test nodes are right."""
    ms.set_seed(0)  # the same initial weights on every rank
    part = ug.mindspore.load(name)
    first, last = Attention(part.num_features, 8, heads=8), Attention(64, part.num_classes, heads=1)
    net = nn.CellList([first, last])
    optimizer = ug.mindspore.Adam(net.trainable_params(), 0.005, weight_decay=5e-4)

    def scores(epoch: int) -> Tensor:
        return last(ops.elu(first(part.x, part, epoch).reshape(-1, 64)), part, epoch).mean(1)

    def loss_of(epoch: int) -> Tensor:
        losses = ops.cross_entropy(scores(epoch)[part.train_mask], part.y[part.train_mask], reduction="none")
        return ug.mindspore.mean(losses, part.num_train)

    step = ms.value_and_grad(loss_of, None, optimizer.parameters)
    for epoch in range(1, int(epochs) + 1):
        loss, gradients = step(epoch)
        optimizer(ug.mindspore.sum_gradients(gradients))
    accuracy = ug.mindspore.mean((scores(0).argmax(1) == part.y)[part.test_mask], part.num_test)
    if part.rank == 0:
        print(f"loss {float(loss):.4f}, test accuracy {float(accuracy):.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
