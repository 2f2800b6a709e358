"""The first images of the real MNIST files, laid out as the tutorials have them."""

import gzip
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def first_images(files: Path, folder: Path, numbers: Mapping[str, int]) -> None:
    """Write train/ and test/ into *folder*, with so many images of each, from the compressed *files*."""
    for file in files.glob("*.gz"):
        split = "train" if file.name.startswith("train") else "test"
        idx, number = gzip.decompress(file.read_bytes()), numbers[split]
        head = 4 + 4 * idx[3]  # with the number of images or labels and their shape; the rest is their bytes
        size = number * int(np.prod(np.frombuffer(idx[8:head], ">u4")))
        (folder / split).mkdir(parents=True, exist_ok=True)
        (folder / split / file.stem).write_bytes(idx[:4] + number.to_bytes(4, "big") + idx[8 : head + size])
