"""Pickles are read as data: nothing they name is imported or called, and whatever they hold ends in one InputError."""

import os
import pickle
import pickletools
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from typing_extensions import override

from unilaunch.errors import InputError
from unilaunch_graph.data.safe_pickle import Lists, read_array, read_lists, read_matrix

Reader = Callable[[Path], Any]
Writer = Callable[[object], bytes]

READERS: list[Reader] = [read_array, read_matrix, read_lists]
NUMBERS = st.sampled_from(["?", "i1", "u2", "<i4", ">i4", "<i8", "u8", "f2", "<f4", ">f4", "f8"])
each_reader = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pickles") / "ind.cora.x"


def _read(reader: Reader, file: Path, content: bytes) -> Any:
    file.write_bytes(content)
    return reader(file)


def _refusal(reader: Reader, file: Path, content: bytes) -> str:
    """Read what must be refused; return the message, which must be one line that begins with the file."""
    with pytest.raises(InputError) as caught:
        _read(reader, file, content)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    return message


@given(data=st.data())
def test_arrays_of_numbers_are_read_as_they_were(data: st.DataObject, file: Path, python2_pickle: Writer) -> None:
    """Any array of one or two dimensions comes back: type but for its byte order, shape, values."""
    array = data.draw(hnp.arrays(data.draw(NUMBERS), hnp.array_shapes(min_dims=1, max_dims=2, min_side=0)))
    for written in (array, array.T):
        found = _read(read_array, file, python2_pickle(written))
        np.testing.assert_array_equal(found, written)
        assert found.dtype == written.dtype.newbyteorder("=")
        assert found.flags.writeable


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.sampled_from([0, 0, 1, 2.5])))
def test_sparse_matrices_are_read_as_they_were(file: Path, python2_pickle: Writer, dense: Any) -> None:
    """A CSR matrix comes back, with its shape."""
    found = _read(read_matrix, file, python2_pickle(sp.csr_matrix(dense)))
    np.testing.assert_array_equal(found.toarray(), dense)


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.lists(st.integers(-(2**31), 2**31 - 1))))
def test_lists_are_read_as_they_were(file: Path, python2_pickle: Writer, lists: dict[int, list[int]]) -> None:
    """A dict of lists comes back as keys, lengths and entries, in the file's order."""
    found: Lists = _read(read_lists, file, python2_pickle(lists))
    assert found.keys.tolist() == list(lists)
    assert found.counts.tolist() == [len(items) for items in lists.values()]
    assert found.items.tolist() == [item for items in lists.values() for item in items]


@pytest.mark.parametrize("protocol", [3, 4])
def test_files_that_python_3_wrote_are_read(file: Path, protocol: int) -> None:
    """Someone who pickled the same content again with today's libraries can still use it."""
    matrix = sp.csr_matrix(np.eye(3, dtype=np.float32))
    assert (_read(read_matrix, file, pickle.dumps(matrix, protocol)) != matrix).nnz == 0
    assert _read(read_array, file, pickle.dumps(np.arange(5), protocol)).tolist() == [0, 1, 2, 3, 4]
    assert _read(read_lists, file, pickle.dumps({7: [8, 9]}, protocol)).items.tolist() == [8, 9]


@each_reader
@given(content=st.binary(max_size=200))
def test_arbitrary_bytes_end_in_a_value_or_an_input_error(reader: Reader, file: Path, content: bytes) -> None:
    """Garbage is refused, unless it happens to be a pickle: the bytes `}.` are an empty dict."""
    with suppress(InputError):
        _read(reader, file, content)


@each_reader
@given(content=st.lists(st.sampled_from([op.code for op in pickletools.opcodes]), max_size=60))
def test_arbitrary_instructions_end_in_a_value_or_an_input_error(
    reader: Reader, file: Path, content: list[str]
) -> None:
    """Invalid programs are refused too."""
    with suppress(InputError):
        _read(reader, file, "".join(content).encode("latin-1") + b".")


@given(data=st.data())
def test_damaged_files_end_in_a_value_or_an_input_error(
    data: st.DataObject, file: Path, python2_pickle: Writer
) -> None:
    """A truncated file is refused; one with wrong bytes is refused, or read when they are mere numbers."""
    reader, value = data.draw(
        st.sampled_from(
            [
                (read_array, np.arange(6).reshape(2, 3)),
                (read_matrix, sp.csr_matrix(np.eye(3))),
                (read_lists, {1: [2, 3]}),
            ]
        )
    )
    content = bytearray(python2_pickle(value))
    _refusal(reader, file, bytes(content[: data.draw(st.integers(0, len(content) - 1))]))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(InputError):
        _read(reader, file, bytes(content))


@given(data=st.data())
def test_truncated_real_files_are_refused(data: st.DataObject, file: Path, shared_datasets: Path) -> None:
    """Cora's own files, cut anywhere."""
    part, reader = data.draw(st.sampled_from([("x", read_matrix), ("ty", read_array), ("graph", read_lists)]))
    content = (shared_datasets / "planetoid" / f"ind.cora.{part}").read_bytes()
    _refusal(reader, file, content[: data.draw(st.integers(0, len(content) - 1))])


class _Calls:
    """Pickles as a call of anything."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    @override
    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (os.system, ("touch TOUCHED",)),
        (eval, ("__import__('os').system('touch TOUCHED')",)),
        (getattr, (os, "system")[1:]),
        (__import__, ("antigravity",)),
        (np.load, ("TOUCHED",)),
        (np.dtype, ("O",)),
    ],
    ids=["system", "eval", "getattr", "import", "numpy", "object-type"],
)
def test_calls_are_refused_and_never_made(
    tmp_path: Path, protocol: int, function: Callable[..., object], arguments: tuple[str, ...]
) -> None:
    """Whatever a pickle would call is not called, in any protocol."""
    touched = tmp_path / "touched"
    made = _Calls(function, *(argument.replace("TOUCHED", str(touched)) for argument in arguments))
    for reader in READERS:
        _refusal(reader, tmp_path / "ind.cora.x", pickle.dumps(made, protocol))
    assert not touched.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"cos\nsystem\n(X\x02\x00\x00\x00lstR.", "wants to import os.system; only arrays, sparse matrices and plain"),
        (b"\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.", "wants to import os.system; only arrays"),
        (b"\x8c\x05numpy\x8c\x0ccore\n.system\x93.", r"wants to import numpy.core\n.system; only"),
        (b"ccopy_reg\n_reconstructor\n.", "wants to import copy_reg._reconstructor; only"),
        (b"cnumpy\nndarray.__reduce__\n.", "wants to import numpy.ndarray.__reduce__; only"),
        (b"cnumpy.core.multiarray\nscalar\n.", "wants to import numpy.core.multiarray.scalar; only"),
        (b"(S'ls'\nios\nsystem\n.", "has the pickle instruction STRING; only"),
        (b"(cos\nsystem\nS'ls'\no.", "wants to import os.system; only"),
        (b"(ios\nsystem\n.", "has the pickle instruction INST; only"),
        (b"\x82\x01.", "has the pickle instruction EXT1; only"),
        (b"U\x01aQ.", "has the pickle instruction BINPERSID; only"),
        (b"\x97.", "has the pickle instruction NEXT_BUFFER; only"),
        (b"\x8a\xff" + b"\xff" * 255 + b".", "has the pickle instruction LONG1; only"),
        (b"cnumpy\nndarray\nN}U\x01aU\x01bs\x86b.", "is damaged: "),
        (b"", "is damaged: "),
        (b"T\xff\xff\xff\x7f.", "is damaged: "),
        (b"N.", "is damaged: it holds no "),
    ],
    ids=lambda value: (
        value.decode("latin-1").encode("unicode_escape").decode()[:24] if isinstance(value, bytes) else ""
    ),
)
def test_tricks_are_refused_with_their_reason(file: Path, content: bytes, reason: str) -> None:
    """The message says what the file wants, or that it is damaged."""
    for reader in READERS:
        assert f"{file}: {reason}" in _refusal(reader, file, content)


def _int(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"Nr\xff\xff\xff\x7f.", "no dict of lists"),
        (b"})" + b"\x85" * 1_000_000 + b"Ns.", "neither a whole number nor text"),
        (b"})" + b"\x85q\x00h\x00\x86" * 100 + b"Ns.", "neither a whole number nor text"),
        (
            b"}(K\x00](" + b"K\x01" * 500 + b"eq\x00" + b"".join(_int(k) + b"h\x00" for k in range(1, 500)) + b"u.",
            "bytes",
        ),
    ],
    ids=["memo", "deep-key", "wide-key", "shared-list"],
)
def test_small_files_cannot_become_large(file: Path, content: bytes, reason: str) -> None:
    """A memo of 2**31 entries, keys that hash for ever, and one list under many keys are refused at once."""
    assert reason in _refusal(read_lists, file, content)


@pytest.mark.parametrize("shape", [(2**31 - 1,), (3, 10**6), (-1,), (), (1, 1, 6), (7,), (2.0, 3), (0, 2**40)], ids=str)
def test_shapes_must_be_those_of_the_content(file: Path, python2_pickle: Writer, shape: tuple[int, ...]) -> None:
    """An array that declares more or less than it brings is refused before memory is taken."""
    content = python2_pickle(np.arange(6, dtype=np.int32))
    declared = (
        b"("
        + b"".join(
            _int(n) if -(2**31) <= n < 2**31 and isinstance(n, int) else b"G" + struct.pack(">d", n) for n in shape
        )
        + b"t"
    )
    assert content.count(b"(" + _int(6) + b"t") == 1
    _refusal(read_array, file, content.replace(b"(" + _int(6) + b"t", declared))


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        ("indptr", [0, 2, 1, 3], "indptr[2] is 1, less than 2 before it"),
        ("indptr", [0, 1, 3], "indptr must have 4 entries"),
        ("indptr", [1, 1, 2, 3], "indptr[0] must be 0, not 1"),
        ("indptr", [0, 1, 2, 9], "indptr ends with 9, but there are 3 indices"),
        ("indices", [0, 3, 1], "indices[1] is 3; allowed are 0 to 2"),
        ("indices", [0, -1, 1], "indices[1] is -1; allowed are 0 to 2"),
        ("indices", [0.0, 1.0, 2.0], "indices that are no whole numbers"),
        ("data", [1.0, 2.0], "arrays of unequal length"),
        ("_shape", (-1, 3), "cannot have the shape (-1, 3)"),
        ("_shape", (3, 2**31 - 1), None),
    ],
)
def test_sparse_matrices_are_checked(
    file: Path, python2_pickle: Writer, name: str, array: list[float] | tuple[int, int], reason: str | None
) -> None:
    """Arrays that are no matrix would let compiled code read beyond their ends: they are refused, with the place."""
    state: dict[str, Any] = {
        "_shape": (3, 3),
        "indptr": np.array([0, 1, 2, 3]),
        "indices": np.array([0, 1, 2]),
        "data": np.ones(3),
    }
    state[name] = np.array(array) if isinstance(array, list) else array
    content = b"\x80\x02cscipy.sparse.csr\ncsr_matrix\n)\x81" + python2_pickle(state)[2:-1] + b"b."
    if reason is None:
        assert _read(read_matrix, file, content).shape == array
    else:
        assert reason in _refusal(read_matrix, file, content)


def test_missing_files_are_named(tmp_path: Path) -> None:
    """A file that is not there is refused as one that cannot be read."""
    with pytest.raises(InputError, match=r"ind\.cora\.x: cannot be read: No such file"):
        read_array(tmp_path / "ind.cora.x")
