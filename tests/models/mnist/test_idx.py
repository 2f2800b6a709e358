"""An idx file is read exactly, packed or not, and a damaged one is refused with its name and what was expected."""

import gzip
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch.errors import InputError
from unilaunch_mnist.idx import read_images, read_labels

PIXELS = (np.arange(3 * 784) % 256).astype(np.uint8)
IMAGES = struct.pack(">4I", 2051, 3, 28, 28) + PIXELS.tobytes()
LABELS = struct.pack(">2I", 2049, 5) + bytes([7, 0, 9, 1, 1])


def _write(folder: Path, content: bytes, name: str = "file.gz") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_good_files(name: str, packed: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """Whatever the name says: an unpacked file that is still called .gz is one too."""
    pack = gzip.compress if packed else bytes
    images = read_images(_write(tmp_path, pack(IMAGES), name))
    np.testing.assert_array_equal(images, PIXELS.reshape(3, 784))
    assert images.dtype == np.uint8
    labels = read_labels(_write(tmp_path, pack(LABELS), name))
    np.testing.assert_array_equal(labels, [7, 0, 9, 1, 1])
    assert labels.dtype == np.int64


@given(length=st.integers(0, len(IMAGES) - 1), packed=st.booleans())
def test_no_beginning_of_a_file_is_a_file(length: int, packed: bool) -> None:  # noqa: FBT001
    """Cut off anywhere, before or after it was packed."""
    with TemporaryDirectory() as folder:
        path = _write(Path(folder), gzip.compress(IMAGES[:length], mtime=0) if packed else IMAGES[:length])
        with pytest.raises(InputError, match=r"file\.gz: expected"):
            read_images(path)
        whole = gzip.compress(IMAGES, mtime=0)
        path = _write(Path(folder), whole[: length * len(whole) // len(IMAGES)])
        with pytest.raises(InputError, match=r"file\.gz: expected"):
            read_images(path)


@given(place=st.integers(0, 15), value=st.integers(0, 255))
def test_no_other_header_fits(place: int, value: int) -> None:
    """Any byte of the header, changed, contradicts the content."""
    damaged = bytearray(IMAGES)
    damaged[place] = value
    with TemporaryDirectory() as folder:
        path = _write(Path(folder), bytes(damaged))
        if damaged == IMAGES:
            read_images(path)
            return
        with pytest.raises(InputError, match=r"file\.gz: expected"):
            read_images(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "found nothing"),
        (LABELS, "begins with 00 00 08 03, found 00 00 08 01"),
        (IMAGES[:15], "a header of 16 bytes, found 15"),
        (struct.pack(">4I", 2051, 3, 32, 32) + bytes(3 * 1024), "images of 28 x 28, found 32 x 32"),
        (struct.pack(">4I", 2051, 0, 28, 28), "says 0 of them"),
        (struct.pack(">4I", 2051, 2**32 - 1, 28, 28), "3,367,254,359,296 bytes for 4,294,967,295 images, found 16"),
        (IMAGES + b"\0", "2,368 bytes for 3 images, found 2,369"),
        (gzip.compress(IMAGES, mtime=0)[:-8] + bytes(8), "whole gzip file.*fetch it again"),
    ],
)
def test_damaged_images(content: bytes, words: str, tmp_path: Path) -> None:
    """Each kind of damage has its line."""
    with pytest.raises(InputError, match=rf"file\.gz: .*{words}"):
        read_images(_write(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "words"),
    [(LABELS[:-2], "13 bytes for 5 labels, found 11"), (LABELS[:-1] + b"\x0a", "label 4: expected a class below 10")],
)
def test_damaged_labels(content: bytes, words: str, tmp_path: Path) -> None:
    """Too few, or of a class that there is not."""
    with pytest.raises(InputError, match=rf"file\.gz: .*{words}"):
        read_labels(_write(tmp_path, content))
