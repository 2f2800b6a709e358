"""The training loss on host arrays: cross entropy over this rank's training nodes, as a share of the whole graph's."""

import numpy as np

from unilaunch_graph.arrays import Floats
from unilaunch_graph.data.graph import TRAIN
from unilaunch_graph.partition.part import Part


class CrossEntropy:
    """Cross entropy summed over the owned training nodes, divided by the training nodes of the whole graph.

    So the ranks' losses and gradients need only be added, and a part without training nodes adds exactly nothing.

    Args:
        part: The part.
    """

    def __init__(self, part: Part) -> None:
        self.nodes = np.flatnonzero(part.split == TRAIN)
        self.labels = part.labels[self.nodes]
        self.of_all = max(1, part.split_sizes[0])

    def value_and_gradient(self, logits: Floats) -> tuple[float, Floats]:
        """Return the loss and its gradient, which takes the logits' place.

        Args:
            logits: They are overwritten. (num_owned, num_classes)

        Returns:
            The loss, summed in float64, and the gradient: softmax - one-hot, divided. (num_owned, num_classes)
        """
        own = np.arange(len(self.nodes))
        rows = logits[self.nodes]
        rows -= rows.max(axis=1, initial=-np.inf, keepdims=True)
        right = rows[own, self.labels]
        np.exp(rows, out=rows)
        sums = rows.sum(axis=1, keepdims=True)
        loss = float((np.log(sums[:, 0]) - right).sum(dtype=np.float64)) / self.of_all
        rows /= sums
        rows[own, self.labels] -= 1
        rows /= self.of_all
        logits[:] = 0
        logits[self.nodes] = rows
        return loss, logits
