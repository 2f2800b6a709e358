"""MNIST's idx files, packed with gzip or not, read strictly: a damaged file is refused."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from unilaunch.errors import InputError
from unilaunch_mnist.arrays import Labels, Pixels

NUM_CLASSES = 10
#: Rows and columns of an image.
SHAPE = (28, 28)
NUM_PIXELS = SHAPE[0] * SHAPE[1]
#: The first four bytes: two zeros, 8 for unsigned bytes, and the number of dimensions.
_IMAGES = b"\0\0\x08\x03"
_LABELS = b"\0\0\x08\x01"
_GZIP = b"\x1f\x8b"


def read_images(path: Path) -> Pixels:
    """Return a file's images. (images, 784)

    Raises:
        InputError: The file cannot be read, is damaged, or holds no images of 28 x 28.
    """
    return _read(path, _IMAGES, SHAPE, "images").reshape(-1, NUM_PIXELS)


def read_labels(path: Path) -> Labels:
    """Return a file's labels. (images,)

    Raises:
        InputError: The file cannot be read, is damaged, or holds other classes than 0 to 9.
    """
    labels = _read(path, _LABELS, (), "labels")
    if labels.max() >= NUM_CLASSES:
        index = int(labels.argmax())
        raise InputError(f"{path}: label {index}: expected a class below {NUM_CLASSES}, found {labels[index]}")
    return labels.astype(np.int64)


def _read(path: Path, magic: bytes, item: tuple[int, ...], what: str) -> Pixels:
    """Return the numbers of an idx file, all in one row."""
    content = _unpack(path)
    if content[:4] != magic:
        raise InputError(
            f"{path}: expected an idx file of {what}, which begins with {magic.hex(' ')}, found "
            f"{content[:4].hex(' ') or 'nothing'}"
        )
    begin = 4 + 4 * (1 + len(item))
    if len(content) < begin:
        raise InputError(f"{path}: expected a header of {begin} bytes, found {len(content)} bytes in all")
    count, *dims = (int(size) for size in np.frombuffer(content, ">u4", 1 + len(item), 4))
    if tuple(dims) != item:
        raise InputError(f"{path}: expected {what} of {' x '.join(map(str, item))}, found {' x '.join(map(str, dims))}")
    if not count:
        raise InputError(f"{path}: expected {what}, found a header that says 0 of them")
    expected = begin + count * int(np.prod(item, dtype=np.int64))
    if len(content) != expected:
        raise InputError(f"{path}: expected {expected:,} bytes for {count:,} {what}, found {len(content):,}")
    return np.frombuffer(content, np.uint8, offset=begin)


def _unpack(path: Path) -> bytes:
    # By content, not by name: browsers unpack files and keep .gz in the name.
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: expected a whole gzip file, found a damaged one: {error}; fetch it again") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
