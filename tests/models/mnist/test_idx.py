"""An idx file is read exactly, packed or not, and a damaged one is refused with its name and what was expected."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from unilaunch.errors import InputError
from unilaunch_mnist.idx import read_images, read_labels

PIXELS = (np.arange(3 * 784) % 256).astype(np.uint8)
IMAGES = struct.pack(">4I", 2051, 3, 28, 28) + PIXELS.tobytes()
LABELS = struct.pack(">2I", 2049, 5) + bytes([7, 0, 9, 1, 1])
PACKED = gzip.compress(IMAGES, mtime=0)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_good_files(name: str, pack: type[bytes], tmp_path: Path) -> None:
    """Whatever the name says: an unpacked file that is still called .gz is one too."""
    path = tmp_path / name
    path.write_bytes(pack(IMAGES))
    images = read_images(path)
    np.testing.assert_array_equal(images, PIXELS.reshape(3, 784))
    path.write_bytes(pack(LABELS))
    labels = read_labels(path)
    assert (images.dtype.name, labels.dtype.name, labels.tolist()) == ("uint8", "int64", [7, 0, 9, 1, 1])


def test_no_beginning_of_a_file_and_no_other_header_is_a_file(tmp_path: Path) -> None:
    """Cut off, before or after it was packed; any byte of the header, changed, contradicts the content."""
    path = tmp_path / "file.gz"
    damaged = [IMAGES[:place] + bytes([IMAGES[place] ^ 0x55]) + IMAGES[place + 1 :] for place in range(16)]
    damaged += [gzip.compress(IMAGES[:length]) for length in range(0, len(IMAGES), 97)]
    damaged += [whole[:length] for whole in (IMAGES, PACKED) for length in range(0, len(whole), 53)]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"file\.gz: expected"):
            read_images(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "found nothing"),
        (LABELS, "begins with 00 00 08 03, found 00 00 08 01"),
        (struct.pack(">4I", 2051, 3, 32, 32) + bytes(3 * 1024), "images of 28 x 28, found 32 x 32"),
        (struct.pack(">4I", 2051, 0, 28, 28), "says 0 of them"),
        (struct.pack(">4I", 2051, 2**32 - 1, 28, 28), "bytes for 4,294,967,295 images, found 16"),
        (IMAGES + b"\0", "2,368 bytes for 3 images, found 2,369"),
        (PACKED[:-8] + bytes(8), "whole gzip file.*fetch it again"),
    ],
)
def test_damage_is_named(content: bytes, words: str, tmp_path: Path) -> None:
    """Each kind has its line."""
    (tmp_path / "file.gz").write_bytes(content)
    with pytest.raises(InputError, match=rf"file\.gz: .*{words}"):
        read_images(tmp_path / "file.gz")
    (tmp_path / "labels.gz").write_bytes(LABELS[:-1] + b"\x0a")
    with pytest.raises(InputError, match="label 4: expected a class below 10"):
        read_labels(tmp_path / "labels.gz")
