"""The training's own arithmetic, with a network that only counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from unilaunch.folder.folder import OutputFolder
from unilaunch.folder.log import Log
from unilaunch.interfaces.backend import Placement
from unilaunch.interfaces.model import Session
from unilaunch.interfaces.world import World
from unilaunch.rendezvous.alone import Alone
from unilaunch_mnist.arrays import Floats, Labels
from unilaunch_mnist.network import Network
from unilaunch_mnist.preparation import Mnist
from unilaunch_mnist.spec import MnistSpec
from unilaunch_mnist.training import Training


class _Right(Network):
    """A network that is always right."""

    @override
    def gradient(self, images: Floats, labels: Labels) -> Any:
        raise NotImplementedError

    @override
    def count_right(self, images: Floats, labels: Labels) -> int:
        assert len(images) == len(labels)
        return len(labels)


@pytest.mark.parametrize("count", [1, 999, 1000, 1001, 2000])
def test_every_test_image_counts(count: int, tmp_path: Path) -> None:
    """Also those of the last block, whole or not."""
    world = World(0, 1, 0, 1, 0, 1, "here", "none")
    session = Session(world, Placement("cpu", 0, 1), Alone(), OutputFolder(tmp_path, 0, 1, "run"), Log(), seed=0)
    images, labels = np.zeros((count, 784), np.uint8), np.zeros(count, np.int64)
    training = Training(MnistSpec(), session, Alone(), _Right(), Mnist(images, labels, images, labels, count))
    training._test()
    assert training.accuracies == [1.0]
