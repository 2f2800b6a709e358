"""From the data folder to the images in memory, before the framework is imported."""

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from unilaunch.errors import InputError
from unilaunch.interfaces.model import Session
from unilaunch_mnist.arrays import Labels, Pixels
from unilaunch_mnist.idx import read_images, read_labels

if TYPE_CHECKING:
    from unilaunch_mnist.spec import MnistSpec

Split = Literal["train", "test"]
#: Prefix of the file names of each split.
_PREFIXES: dict[Split, str] = {"train": "train", "test": "t10k"}
#: Where to download the files.
SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist/"


@dataclass(frozen=True, slots=True)
class Mnist:
    """The data of one rank.

    Every rank holds all training images, one byte per pixel; each epoch assigns other images to this rank.

    Attributes:
        images: The training images. (num_train, 784) uint8
        labels: Their classes. (num_train,) int64
        test_images: This rank's test images. (test images of this rank, 784) uint8
        test_labels: Their classes. (test images of this rank,) int64
        num_test: Test images of all ranks.
    """

    images: Pixels
    labels: Labels
    test_images: Pixels
    test_labels: Labels
    num_test: int


def prepare_data(options: "MnistSpec", session: Session) -> Mnist:
    """Return this rank's data; all ranks must call it.

    Raises:
        RefusedTogetherError: A rank cannot use its input; every rank raises this.
    """
    world = session.world
    folder = data_folder(options.data_dir)
    with session.together("read data"):
        images, labels = read_split(folder, "train")
        test_images, test_labels = read_split(folder, "test")
    # Ranks with different files would take different numbers of steps, and wait for each other for ever.
    checksum = 0
    for array in (images, labels, test_images, test_labels):
        checksum = zlib.crc32(array.data, checksum)
    of_rank_0, *_ = session.peers.share([len(images), len(test_images), checksum])
    with session.together("compare data"):
        if of_rank_0 != [len(images), len(test_images), checksum]:
            raise InputError(
                f"{folder} on {world.host}: expected the files that rank 0 has, found other ones "
                f"({len(images):,} training and {len(test_images):,} test images here); copy rank 0's"
            )
    session.log.say(f"{len(images):,} training and {len(test_images):,} test images: {folder}")
    own = slice(world.rank, None, world.size)
    return Mnist(images, labels, test_images[own].copy(), test_labels[own], len(test_images))


def data_folder(data_dir: Path | None) -> Path:
    """Return the folder of data sets: *data_dir*, or the platform's cache folder."""
    if data_dir is not None:
        return data_dir
    from platformdirs import user_cache_path

    return user_cache_path("unilaunch")


def read_split(folder: Path, split: Split) -> tuple[Pixels, Labels]:
    """Return the images and the labels of the training or of the test files.

    Raises:
        InputError: A file is missing or damaged, or there are not as many labels as images.
    """
    prefix = _PREFIXES[split]
    images_path = find(folder, split, f"{prefix}-images-idx3-ubyte")
    labels_path = find(folder, split, f"{prefix}-labels-idx1-ubyte")
    images, labels = read_images(images_path), read_labels(labels_path)
    if len(images) != len(labels):
        raise InputError(f"{labels_path}: expected {len(images):,} labels, one for each image, found {len(labels):,}")
    return images, labels


def find(folder: Path, split: Split, name: str) -> Path:
    """Return the path of a file, which may be compressed with gzip.

    Raises:
        InputError: No folder that is searched holds the file.
    """
    # The last is for the tutorial's DATA_PATH, which names the folder train/ beside test/.
    places = [folder, folder / "mnist", folder / split, folder.absolute().parent / split]
    for place in places:
        for path in (place / f"{name}.gz", place / name):
            if os.path.exists(path):  # noqa: PTH110  (Path.exists raises for a folder that may not be entered)
                return path
    raise InputError(
        f"no {name} or {name}.gz in {', '.join(map(str, dict.fromkeys(places)))}: put MNIST's four files into one "
        f"folder ({SOURCE}{name}.gz is one of them), and name it with --data-dir"
    )
