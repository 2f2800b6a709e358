"""What the tests of MNIST share: a writer of small files in MNIST's format."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

#: Number of training and of test images of the small files.
NUM_TRAIN, NUM_TEST = 23, 11


@pytest.fixture
def write_mnist() -> Callable[[Path, Path], None]:
    """A function that writes the training files into one folder and the test files into another."""

    def write(train: Path, test: Path) -> None:
        draw = np.random.default_rng(0)
        for folder, prefix, count in ((train, "train", NUM_TRAIN), (test, "t10k", NUM_TEST)):
            folder.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 256, count * 784).astype(np.uint8).tobytes()
            labels = draw.integers(0, 10, count).astype(np.uint8).tobytes()
            (folder / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, count, 28, 28) + pixels)
            (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + labels)

    return write
