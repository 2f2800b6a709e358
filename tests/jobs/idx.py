"""The first images of the real MNIST files, laid out as the tutorials have them."""

import gzip
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def first_images(files: Path, folder: Path, numbers: Mapping[str, int]) -> None:
    """Write train/ and test/ into *folder*, with so many images of each, from the compressed *files*."""
    for file in files.glob("*.gz"):
        split = "train" if file.name.startswith("train") else "test"
        (folder / split).mkdir(parents=True, exist_ok=True)
        (folder / split / file.stem).write_bytes(_first(gzip.decompress(file.read_bytes()), numbers[split]))


def _first(idx: bytes, number: int) -> bytes:
    """Return the first images, or labels, of a file: it says how many and how large they are, then has their bytes."""
    head = 4 + 4 * idx[3]
    shape = np.frombuffer(idx[4:head], ">u4")
    return idx[:4] + number.to_bytes(4, "big") + idx[8:head] + idx[head : head + number * int(np.prod(shape[1:]))]
