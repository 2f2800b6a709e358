"""Parts on disk: whole or not at all, checked byte by byte, and nobody else's."""

import fcntl
import hashlib
import json
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphs_by_hand import make_directed_graph, make_graph, parts_of
from unilaunch.errors import InputError
from unilaunch_graph import new_files
from unilaunch_graph.data import hashes
from unilaunch_graph.data.edges import undirected
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.new_files import folder_beside
from unilaunch_graph.partition import store
from unilaunch_graph.partition.cut import Order, split_parts
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.store import (
    Origin,
    Partition,
    PartReader,
    nodes_file,
    part_dir,
    read_part,
    write_nodes,
    write_parts,
)

ORIGIN = Origin(source="ring", edges_hash="edges", cut_hash="cut", data_hash="print", partitioner="pymetis 1")


def _write(folder: Path, graph: Graph, parts: Iterable[Part], origin: Origin = ORIGIN) -> None:
    write_parts(folder, origin, parts)
    write_nodes(folder, origin, graph, folder.with_name("nodes"), print)


def _graph(*, sparse: bool = False) -> Graph:
    ring = np.arange(12)
    indptr, indices = undirected(ring, np.roll(ring, -1), 12)
    dense = np.eye(12, 5, dtype=np.float32)
    split: NDArray[np.uint8] = (ring % 4).astype(np.uint8)
    return Graph(indptr, indices, sp.csr_array(dense) if sparse else dense, ring % 3, split, 3)


def _parts(*, sparse: bool = False) -> list[Part]:
    graph = _graph(sparse=sparse)
    return parts_of(graph, np.arange(12) // 6, 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition into two parts."""
    _write(tmp_path / "ring-2", _graph(), _parts())
    return tmp_path / "ring-2"


def test_a_part_is_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another start maps it unread, and reads it once more when one of its files has changed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent / "cache"))
    monkeypatch.setattr(hashes, "_SETTLED", -10_000_000_000)
    read_part(Partition(folder, "print"), 0, 2)
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", None)
        assert read_part(Partition(folder, "print"), 0, 2).num_owned == 6
    (labels,) = folder.with_name("nodes").glob("labels-*.npy")
    for path in (labels, part_dir(folder, 0) / "strengths.npy"):
        path.write_bytes(path.read_bytes()[:-1] + b"\x07")
        with pytest.raises(InputError, match=rf"{path.name}: damaged"):
            read_part(Partition(folder, "print"), 0, 2)


def test_rows_are_read_piece_by_piece(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank holds a few bytes of the file beside its own rows; many rows are mapped from a temporary file."""
    whole = [read_part(Partition(folder, "print"), index, 2) for index in range(2)]
    monkeypatch.setattr(store, "_BLOCK", 50)
    monkeypatch.setattr(store, "_STEP", 100)
    monkeypatch.setattr(store, "_SHARE", 0.0)
    for part in whole:
        read = read_part(Partition(folder, "print"), part.index, 2)
        np.testing.assert_array_equal(read.features, part.features)
        np.testing.assert_array_equal(read.labels, part.labels)
        assert isinstance(read.features, np.memmap)
        assert not Path(str(read.features.filename)).exists()


@pytest.mark.parametrize("name", ["labels", "features", "part.0/halo"])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_file_that_is_replaced_while_it_is_read_is_no_success(name: str, steps: int, folder: Path) -> None:
    """Its hash was right at the beginning, and its size is."""
    reader = PartReader.open(Partition(folder, "print"), 0, 2, checks_shared=True)
    for _ in range(steps):
        reader.step()
    (path,) = (*folder.with_name("nodes").glob(f"{name}-*.npy"), *folder.glob(f"{name}.npy"))
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[:-1] + b"\x07")
    other.rename(path)
    with pytest.raises(InputError, match=rf"{path.name}: (was changed while it was read: start again|damaged)"):
        deque(map(PartReader.step, [reader] * (reader.steps - steps)), maxlen=0)


def _change_manifest(folder: Path, *, keeps_hash: bool = False, **changed: object) -> None:
    """Change a manifest, or write it with other values as its author could."""
    path = _manifest(folder)
    told = json.loads(path.read_text()) | changed
    if keeps_hash:
        del told["sha256"]
        text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
        told["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(told))


def _manifest(folder: Path) -> Path:
    return part_dir(folder, 0) / "manifest.json"


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "lost": (lambda f: (part_dir(f, 0) / "halo.npy").unlink(), r"halo\.npy: is missing: delete the partition"),
    "no manifest": (lambda f: _manifest(f).unlink(), r"manifest\.json: this part is missing"),
    "deep": (lambda f: _manifest(f).write_text("[" * 10**5), r"manifest\.json: damaged"),
    "other number": (lambda f: _change_manifest(f, num_parts=7), r"manifest\.json: damaged, its SHA-256"),
    "no hash": (lambda f: _change_manifest(f, sha256=""), r"manifest\.json: damaged, its SHA-256"),
    "print": (lambda f: _change_manifest(f, keeps_hash=True, cut="another"), "made from other data"),
    "index": (lambda f: _change_manifest(f, keeps_hash=True, index=1), "part 1 of 2 of ring"),
    "a path": (
        lambda f: _change_manifest(f, keeps_hash=True, arrays={"owned_edge.../other": {"size": 1, "sha256": ""}}),
        "'owned_edge.../other' is no name of an array",
    ),
    "rows lost": (lambda f: next(f.with_name("nodes").glob("split-*")).unlink(), r"split-.*\.npy: is missing"),
    "no names of rows": (lambda f: nodes_file(f, "print").write_text("{}"), r"print\.json: damaged"),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_one_line_with_the_file(damage: Callable[[Path], object], words: str, folder: Path) -> None:
    """And what to do. The other part needs none of it."""
    damage(folder)
    with pytest.raises(InputError, match=words) as refusal:
        read_part(Partition(folder, "print"), 0, 2)
    assert "\n" not in str(refusal.value)
    assert "delete" in str(refusal.value) or "put it back" in str(refusal.value)


_KILLED = """
import os, signal, sys
from pathlib import Path
from unilaunch_graph.new_files import folder_beside
with folder_beside(Path(sys.argv[1])) as aside:
    (aside / "part.0").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_wrote_is_removed_and_a_living_ones_stays(tmp_path: Path) -> None:
    """Each try of a job with a time limit that was too short left as much as the whole partition."""
    folder = tmp_path / "ring"
    killed = subprocess.run([sys.executable, "-c", _KILLED, folder], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    with folder_beside(folder) as living:
        (living / "part.0").mkdir()
        write_parts(folder, ORIGIN, iter(_parts()))
        assert sorted(tmp_path.iterdir()) == [living, folder]
    assert list(tmp_path.iterdir()) == [folder]


def test_two_hosts_that_cut_at_once_make_one_whole_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the file system shows a lock on its own host only: the one removed what the other was writing."""
    folder, host = tmp_path / "ring", ["a"]
    monkeypatch.setattr(fcntl, "flock", lambda _place, _how: None)
    monkeypatch.setattr(new_files, "_kernel", lambda: host[0])

    def parts() -> Iterator[Part]:
        first, second = _parts()
        yield first
        host[0] = "b"
        other.enter_context(folder_beside(folder))
        yield second

    with ExitStack() as other:
        write_parts(folder, ORIGIN, parts())
    write_parts(folder, ORIGIN, iter(_parts()))
    write_nodes(folder, ORIGIN, _graph(), tmp_path / "nodes", print)
    assert [read_part(Partition(folder, "print"), index, 2).num_owned for index in range(2)] == [6, 6]
    assert {path.name for path in tmp_path.iterdir()} == {"ring", "nodes"}


def _shuffled(graph: Graph, owner: Any, num_parts: int) -> list[Part]:
    """Return parts whose nodes stand in no order."""
    nodes = np.lexsort((np.arange(graph.num_nodes) * 5 % graph.num_nodes, owner))
    begins = np.searchsorted(np.asarray(owner)[nodes], np.arange(num_parts + 1))
    return list(split_parts(graph, Order(nodes, np.argsort(nodes).astype(np.int32), begins)))


_PAIRS = [(0, 1), (1, 2), (5, 6), (0, 6)]
_PLAIN, _DIRECTED = make_graph(7, _PAIRS), make_directed_graph(7, [*_PAIRS, (3, 3), (0, 1)])
GRAPHS: dict[str, Graph] = {
    "dense": _PLAIN,
    "sparse": replace(_PLAIN, features=sp.csr_array(np.eye(7, 5, dtype=np.float32))),
    "directed": replace(_DIRECTED, labels=np.eye(7, 3, dtype=np.uint8)),
    "named": replace(_PLAIN, node_arrays={"year": np.arange(7) + 2**40}),
    "values": replace(_PLAIN, labels=np.linspace(0, 1, 7, dtype=np.float32)),
}


@pytest.mark.parametrize("owner", [np.zeros(7, np.int64), np.arange(7) % 2 * 2], ids=["one", "three, one empty"])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_array_of_every_part_is_the_same(name: str, owner: Any, tmp_path: Path) -> None:
    """Each field of a part, in the order of its nodes. Edges are mapped, and not read into memory."""
    graph, num_parts = GRAPHS[name], int(owner.max()) + 1
    written = _shuffled(graph, owner, num_parts)
    _write(tmp_path / name, graph, written)
    for index, part in enumerate(written):
        read = read_part(Partition(tmp_path / name, "print"), index, num_parts)
        assert isinstance(read.owned_indices, np.memmap) or not part.num_owned
        for field in fields(Part):
            if field.name == "inputs_sha256":
                continue
            mine, theirs = getattr(part, field.name), getattr(read, field.name)
            named = isinstance(mine, dict)
            assert not named or mine.keys() == theirs.keys()
            for array, same in [(mine[key], theirs[key]) for key in mine] if named else [(mine, theirs)]:
                dense = [one.toarray() if sp.issparse(one) else one for one in (same, array)]
                np.testing.assert_array_equal(dense[0], dense[1], err_msg=field.name)
                assert getattr(same, "dtype", None) == getattr(array, "dtype", None)


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition of sparse features, whose files are damaged and put right again."""
    folder = tmp_path_factory.mktemp("fragile") / "ring"
    _write(folder, _graph(sparse=True), _parts(sparse=True))
    return folder


@given(data=st.data())
@settings(max_examples=300)
def test_no_byte_can_change_unnoticed(fragile: Path, data: st.DataObject) -> None:
    """Any file, any place, any other byte, or an end that is missing: refused in one line."""
    folders = (part_dir(fragile, 0), fragile / "data", fragile.with_name("nodes"))
    path = data.draw(st.sampled_from([path for folder in folders for path in sorted(folder.iterdir())]))
    raw = path.read_bytes()
    at = data.draw(st.integers(0, len(raw) - 1))
    cut = data.draw(st.booleans())
    path.write_bytes(raw[:at] if cut else raw[:at] + bytes([raw[at] ^ data.draw(st.integers(1, 255))]) + raw[at + 1 :])
    try:
        if path.suffix == ".json" and path.read_bytes().split() == raw.split():
            return  # another white space between its values, or none at its end: it says the same
        with pytest.raises(InputError) as refusal:
            read_part(Partition(fragile, "print"), 0, 2)
        assert "\n" not in str(refusal.value)
    finally:
        path.write_bytes(raw)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("halo_indices", np.array([0, 2], np.int32), r"halo_indices\[1\] is 2; allowed are 0 to 1"),
        ("send_rows", np.array([0, -1], np.int32), r"send_rows\[1\] is -1"),
        ("halo_counts", np.array([0, 1]), r"halo_counts has the sum 1, but there are 2 rows"),
        ("owned_weights", np.ones(3, np.float32), r"owned_weights has shape \(3,\), but must have 10 rows"),
        ("owned", np.array([0, 1, 2, 3, 4, 12]), r"owned\[5\] is 12; allowed are 0 to 11"),
        ("features_indices", np.full(5, 5, np.int32), r"features_indices\[0\] is 5; allowed are 0 to 4"),
        ("labels", np.zeros(11, np.int64), "has 11 rows, but the graph has 12 nodes"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_though_their_hashes_are_right(
    name: str, array: Any, words: str, tmp_path: Path
) -> None:
    """The author of a partition computes its hashes; an index past the end would read the memory behind an array."""
    graph, parts = _graph(sparse=True), _parts(sparse=True)
    if name == "features_indices":
        features = sp.csr_array(graph.features)
        features.indices = array
        graph = replace(graph, features=features)
    elif name == "labels":
        graph = replace(graph, labels=array)
    else:
        parts[0] = replace(parts[0], **{name: array})
    _write(tmp_path / "ring", graph, parts)
    with pytest.raises(InputError, match=words + ".*delete the partition"):
        read_part(Partition(tmp_path / "ring", "print"), 0, 2)
