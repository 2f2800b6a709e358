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
        self.shape = (-1, heads, width_out)
        self.lin = nn.Dense(width_in, heads * width_out, XavierUniform(), has_bias=False)
        self.att_src, self.att_dst = (Parameter(initializer(XavierUniform(), (1, heads, width_out))) for _ in range(2))

    def construct(self, x: Tensor, part: ug.mindspore.GraphPart) -> Tensor:
        """(num_owned, width_in) -> (num_owned, heads, width_out)"""
        source, target = part.edge_index
        own = self.lin(x).reshape(self.shape)
        rows = ug.mindspore.halo(own, part)
        scores = ops.gather((rows * self.att_src).sum(-1), source, 0) + ops.gather(
            (own * self.att_dst).sum(-1), target, 0
        )
        shares = ug.mindspore.segment_softmax(ops.leaky_relu(scores, 0.2), part)
        return ug.mindspore.segment_sum(shares.expand_dims(-1) * ops.gather(rows, source, 0), part)


class GAT(nn.Cell):
    """Eight heads of eight, then one for the classes."""

    def __init__(self, part: ug.mindspore.GraphPart) -> None:
        super().__init__()
        self.part = part
        self.first, self.last = Attention(part.num_features, 8, 8), Attention(64, part.num_classes, 1)

    def construct(self, x: Tensor, epoch: int) -> Tensor:
        """Return one score for each class. (num_owned, num_classes)"""
        for layer, attention in enumerate((self.first, self.last)):
            x = ug.mindspore.dropout(x, self.part, 0.6, seed=0, step=epoch, layer=layer, training=self.training)
            x = attention(x, self.part)
            x = ops.elu(x.reshape(len(x), -1)) if layer == 0 else x.mean(1)
        return x


def main(name: str = "cora", epochs: str = "200") -> None:
    """Train, and say how many test nodes are right."""
    ms.set_seed(0)  # the same initial weights on every rank
    part = ug.mindspore.load(name)
    net = GAT(part)
    optimizer = ug.mindspore.Adam(net.trainable_params(), learning_rate=0.005, weight_decay=5e-4)

    def loss_of(epoch: int) -> Tensor:
        out, mask = net(part.x, epoch), part.train_mask
        return ug.mindspore.mean(ops.cross_entropy(out[mask], part.y[mask], reduction="none"), part.num_train)

    step = ms.value_and_grad(loss_of, None, optimizer.parameters)
    for epoch in range(int(epochs)):
        net.set_train()
        loss, gradients = step(epoch)
        optimizer(ug.mindspore.sum_gradients(gradients))
    right = (net.set_train(False)(part.x, 0).argmax(1) == part.y)[part.test_mask]
    accuracy = ug.mindspore.mean(right, part.num_test)
    if part.rank == 0:
        print(f"loss {float(loss):.4f}, test accuracy {float(accuracy):.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
