"""Train unilaunch's layers in MindSpore on this rank's part, and print figures as networks.py does. For own_models.py.

    python benchmarks/programs/mindspore_networks.py mindspore {gat,sage} GRAPH.npz PARTS EPOCHS

The initial weights are those of networks.py, which torch draws.
"""

import json
import resource
import statistics
import sys
import time

import mindspore as ms
from mindspore import Tensor, nn, ops
from typing_extensions import override

import unilaunch_graph as ug
from programs.networks import CLASSES, HIDDEN, make_net


class Net(nn.Cell):  # type: ignore[misc]
    """The network of networks.py."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        if kind == "gat":
            self.first = ug.mindspore.GATConv(width, HIDDEN // 8, heads=8)
            self.last = ug.mindspore.GATConv(HIDDEN, CLASSES)
        else:
            self.first, self.last = ug.mindspore.SAGEConv(width, HIDDEN), ug.mindspore.SAGEConv(HIDDEN, CLASSES)
        drawn = make_net(kind, ug.torch, width).state_dict()
        for parameter in self.trainable_params():
            parameter.set_data(Tensor(drawn[parameter.name].numpy()))

    @override
    def construct(self, rows: Tensor, part: ug.mindspore.GraphPart) -> Tensor:
        """Return the logits."""
        return self.last(ops.elu(self.first(rows, part)), part)


def main() -> None:
    """Train and print."""
    _, kind, path, parts, epochs = sys.argv[1:]
    part = ug.mindspore.load(path, partition_dir=parts, normalize_features=False)
    net = Net(kind, part.num_features)
    adam = ug.mindspore.Adam(net.trainable_params(), 0.005)
    cross_entropy = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="none")

    def loss_of() -> Tensor:
        losses = cross_entropy(net(part.x, part)[part.train_mask], part.y[part.train_mask])
        return ug.mindspore.mean(losses, part.num_train)

    step = ms.value_and_grad(loss_of, None, adam.parameters)
    seconds, numbers = [], []
    for _ in range(int(epochs)):
        begin = time.perf_counter()
        loss, gradients = step()
        adam(ug.mindspore.sum_gradients(gradients))
        numbers.append(float(loss))
        seconds.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures = {"seconds_per_epoch": statistics.median(seconds[1:]), "loss": numbers, "peak_memory_bytes": peak}
    sys.stdout.write(json.dumps(figures) + "\n")  # in one piece: the ranks share the pipe


if __name__ == "__main__":
    main()
