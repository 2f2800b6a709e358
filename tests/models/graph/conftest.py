"""What the tests of the data sets share: real files, and a writer of Planetoid's format."""

import struct
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

Writer = Callable[[object], bytes]


@pytest.fixture(scope="session")
def shared_datasets() -> Path:
    """The folder of real data sets that lies beside the checkout."""
    folder = Path(__file__).parents[3].parent / "shared" / "datasets"
    if not folder.is_dir():
        pytest.skip(f"no shared datasets: {folder}")
    return folder


@pytest.fixture(scope="session")
def python2_pickle() -> Writer:
    """A function that pickles as Python 2 with numpy and scipy of 2016 did, which made Planetoid's files."""
    return lambda value: b"\x80\x02" + _python2(value) + b"."


@pytest.fixture
def write_planetoid(tmp_path: Path, python2_pickle: Writer) -> Callable[..., Path]:
    """A function that writes the eight files of a data set into tmp_path/planetoid, and returns tmp_path."""

    def write(name: str, parts: Mapping[str, object]) -> Path:
        (tmp_path / "planetoid").mkdir(exist_ok=True)
        for part, value in parts.items():
            content = value.encode() if isinstance(value, str) else python2_pickle(value)
            (tmp_path / "planetoid" / f"ind.{name}.{part}").write_bytes(content)
        return tmp_path

    return write


@pytest.fixture
def tiny_planetoid() -> dict[str, Any]:
    """Six known nodes and test nodes 9, 6 and 7; node 8 is missing, as 15 of Citeseer's nodes are."""
    allx = sp.csr_matrix(np.arange(1, 13, dtype=np.float32).reshape(6, 2))
    ally = np.eye(2, dtype=np.int32)[[0, 1, 0, 1, 0, 1]]
    tx = sp.csr_matrix(np.array([[90, 0], [60, 0], [0, 70]], np.float32))
    neighbours = {0: [1, 1, 0], 1: [0], 2: [9], 3: [4], 4: [3], 5: [], 6: [7], 7: [6], 8: [], 9: [2]}
    return {
        "x": allx[:2],
        "y": ally[:2],
        "allx": allx,
        "ally": ally,
        "tx": tx,
        "ty": np.eye(2, dtype=np.int32)[[1, 0, 1]],
        "graph": defaultdict(list, neighbours),
        "test.index": "9\n6\n7\n",
    }


def _python2(value: object) -> bytes:  # noqa: PLR0911  (one case for each type)
    match value:
        case np.ndarray():
            return _array(value)
        case sp.csr_matrix():
            state = {"_shape": value.shape, "indptr": value.indptr, "indices": value.indices, "data": value.data}
            return b"cscipy.sparse.csr\ncsr_matrix\n)\x81" + _python2(state) + b"b"
        case defaultdict():
            return b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R" + _items(value)
        case dict():
            return b"}" + _items(value)
        case list():
            return b"](" + b"".join(map(_python2, value)) + b"e"
        case tuple():
            return b"(" + b"".join(map(_python2, value)) + b"t"
        case bytes():
            return b"T" + struct.pack("<i", len(value)) + value
        case str():
            return _python2(value.encode("latin-1"))
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            return b"J" + struct.pack("<i", value)
    raise TypeError(type(value))


def _items(value: dict[Any, Any]) -> bytes:
    return b"(" + b"".join(_python2(key) + _python2(item) for key, item in value.items()) + b"u"


def _array(value: np.ndarray[Any, Any]) -> bytes:
    is_fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    dtype = b"cnumpy\ndtype\n" + _python2((value.dtype.str[1:], 0, 1)) + b"R"
    dtype += _python2((3, value.dtype.str[0], None, None, None, -1, -1, 0)) + b"b"
    content = _python2(is_fortran) + _python2(value.tobytes("F" if is_fortran else "C"))
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _python2((0,)) + _python2("b") + b"tR"
    return empty + b"(" + _python2(1) + _python2(value.shape) + dtype + content + b"tb"
