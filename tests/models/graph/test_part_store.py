"""Parts on disk: whole or not at all, checked byte by byte, and nobody else's; files are hashed once."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs_by_hand import make_directed_graph, make_graph, parts_of
from unilaunch.errors import InputError
from unilaunch_graph.data import hashes
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.data.hashes import hash_file, remember
from unilaunch_graph.new_files import folder_beside
from unilaunch_graph.partition import store
from unilaunch_graph.partition.cut import Order, split_parts
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.store import Origin, Partition, read_part, write_parts

ORIGIN = Origin(source="ring", edges_hash="edges", cut_hash="cut", data_hash="print", partitioner="pymetis 1")
RING = replace(make_graph(12, [(node, (node + 1) % 12) for node in range(12)]), features=np.eye(12, 5, dtype="f4"))
SPARSE_RING = replace(RING, features=sp.csr_array(RING.features))


def _write(folder: Path, graph: Graph, parts: Iterable[Part]) -> Path:
    write_parts(folder, ORIGIN, parts)
    store.write_nodes(folder, ORIGIN, graph, folder.with_name("nodes"), print)
    return folder


def _parts(graph: Graph = RING) -> list[Part]:
    return parts_of(graph, np.arange(12) // 6, 2)


def _read(folder: Path, index: int = 0, num_parts: int = 2) -> Part:
    return read_part(Partition(folder, "print"), index, num_parts)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition into two parts."""
    return _write(tmp_path / "ring", RING, _parts())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and a clock by which a file is old enough at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "_SETTLED", -10_000_000_000)
    return tmp_path / "cache" / "unilaunch" / "hashes"


@pytest.mark.usefixtures("cache")
def test_a_part_is_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another start maps it unread, and reads it once more when one of its files has changed."""
    _read(folder)
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", None)
        assert _read(folder).num_owned == 6
    (labels,) = folder.with_name("nodes").glob("labels-*.npy")
    for path in (labels, folder / "part.0" / "strengths.npy"):
        path.write_bytes(path.read_bytes()[:-1] + b"\x07")
        with pytest.raises(InputError, match=rf"{path.name}: damaged"):
            _read(folder)


def test_a_changed_file_is_hashed_again(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same size and the same time of change too: a file that was moved there; also one of several files."""
    path, other = tmp_path / "file", tmp_path / "other"
    with monkeypatch.context() as patch:
        patch.setattr(hashes, "_SETTLED", 2_000_000_000)  # two contents within a tick of the clock have one time
        path.write_bytes(b"changing")
        hash_file(path)
        assert not cache.exists()
    for content in (b"content", b"CONTENT", b"longer content"):
        other.write_bytes(content)
        os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
        time.sleep(0.01)
        other.rename(path)
        assert hash_file(path) == hashlib.sha256(content).hexdigest()
    other.touch()
    assert [remember(tmp_path, [path, other], text.title) for text in ("first", "again")] == ["First", "First"]
    path.write_bytes(b"CHANGED CONTENT"[:14])
    assert remember(tmp_path, [path, other], "anew".title) == "Anew"


@pytest.mark.parametrize("content", [b"", b"a\nb\nc\n", b"\xff" * 100_000])
def test_a_damaged_memory_of_hashes_is_no_memory(tmp_path: Path, cache: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(b"content")
    expected = hash_file(tmp_path / "file")
    next(cache.iterdir()).write_bytes(content)
    assert [hash_file(tmp_path / "file") for _ in range(2)] == [expected] * 2


def _manifest(folder: Path) -> Path:
    return folder / "part.0" / "manifest.json"


def _change_manifest(folder: Path, *, keeps_hash: bool = False, **changed: object) -> None:
    """Change a manifest, or write it with other values as its author could."""
    told = json.loads(_manifest(folder).read_text()) | changed
    if keeps_hash:
        del told["sha256"]
        text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
        told["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    _manifest(folder).write_text(json.dumps(told))


A_PATH = {"owned_edge.../other": {"size": 1, "sha256": ""}}


@pytest.mark.parametrize(("damage", "words"), [
    (lambda f: (f / "part.0" / "halo.npy").unlink(), r"halo\.npy: is missing: delete the partition"),
    (lambda f: _manifest(f).unlink(), r"manifest\.json: this part is missing"),
    (lambda f: _change_manifest(f, num_parts=7), r"manifest\.json: damaged, its SHA-256"),
    (lambda f: _change_manifest(f, sha256=""), r"manifest\.json: damaged, its SHA-256"),
    (lambda f: _change_manifest(f, keeps_hash=True, cut="another"), "made from other data"),
    (lambda f: _change_manifest(f, keeps_hash=True, index=1), "part 1 of 2 of ring"),
    (lambda f: _change_manifest(f, keeps_hash=True, arrays=A_PATH), "'owned_edge.../other' is no name of an array"),
    (lambda f: next(f.with_name("nodes").glob("split-*")).unlink(), r"split-.*\.npy: is missing"),
    (lambda f: store.nodes_file(f, "print").write_text("{}"), r"print\.json: damaged"),
])  # fmt: skip
def test_damage_is_one_line_with_the_file(damage: Callable[[Path], object], words: str, folder: Path) -> None:
    """With what to do."""
    damage(folder)
    with pytest.raises(InputError, match=words) as refusal:
        _read(folder)
    assert "delete" in str(refusal.value) or "put it back" in str(refusal.value)


KILLED = """
import os, signal, sys
from pathlib import Path
from unilaunch_graph.new_files import folder_beside
with folder_beside(Path(sys.argv[1])) as aside:
    (aside / "part.0").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_wrote_is_removed_and_others_stay(tmp_path: Path) -> None:
    """What a living process writes, and another host, whose locks this one may not see."""
    folder, of_another_host = tmp_path / "ring", tmp_path / f".ring.01234567.{'0' * 32}"
    killed = subprocess.run([sys.executable, "-c", KILLED, folder], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    of_another_host.mkdir()
    with folder_beside(folder) as living:
        (living / "part.0").mkdir()
        write_parts(folder, ORIGIN, _parts())
        assert sorted(tmp_path.iterdir()) == sorted([living, of_another_host, folder])
    assert sorted(tmp_path.iterdir()) == [of_another_host, folder]


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
def test_every_array_of_every_part_is_the_same(name: str, owner: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Each field of a part, in the order of its nodes, read in small blocks. Edges are mapped, many rows too."""
    for limit, value in (("_BLOCK", 50), ("_STEP", 100), ("_SHARE", 0.0)):
        monkeypatch.setattr(store, limit, value)
    graph, num_parts = GRAPHS[name], int(owner.max()) + 1
    written = _shuffled(graph, owner, num_parts)
    _write(tmp_path / name, graph, written)
    for index, part in enumerate(written):
        read = _read(tmp_path / name, index, num_parts)
        mapped = [read.owned_indices] if sp.issparse(read.features) else [read.owned_indices, read.features]
        assert all(isinstance(array, np.memmap) for array in mapped) or not part.num_owned
        for field in [field.name for field in fields(Part) if field.name != "inputs_sha256"]:
            mine, theirs = (getattr(one, field) for one in (part, read))
            if not isinstance(mine, dict):
                mine, theirs = {field: mine}, {field: theirs}
            assert mine.keys() == theirs.keys()
            for key, array in mine.items():
                dense = [one.toarray() if sp.issparse(one) else one for one in (theirs[key], array)]
                np.testing.assert_array_equal(dense[0], dense[1], err_msg=field)
                assert getattr(theirs[key], "dtype", None) == getattr(array, "dtype", None)


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition of sparse features, whose files are damaged and put right again."""
    return _write(tmp_path_factory.mktemp("fragile") / "ring", SPARSE_RING, _parts(SPARSE_RING))


@given(data=st.data())
@settings(max_examples=300)
def test_no_byte_can_change_unnoticed(fragile: Path, data: st.DataObject) -> None:
    """Any file, any place, any other byte, or an end that is missing: refused in one line."""
    folders = (fragile / "part.0", fragile / "data", fragile.with_name("nodes"))
    path = data.draw(st.sampled_from([path for folder in folders for path in sorted(folder.iterdir())]))
    raw = path.read_bytes()
    at = data.draw(st.integers(0, len(raw) - 1))
    cut = data.draw(st.booleans())
    path.write_bytes(raw[:at] if cut else raw[:at] + bytes([raw[at] ^ data.draw(st.integers(1, 255))]) + raw[at + 1 :])
    try:
        if path.suffix == ".json" and path.read_bytes().split() == raw.split():
            return  # another white space between its values, or none at its end: it says the same
        with pytest.raises(InputError) as refusal:
            _read(fragile)
        assert "\n" not in str(refusal.value)
    finally:
        path.write_bytes(raw)


@pytest.mark.parametrize(("name", "array", "words"), [
    ("halo_indices", np.array([0, 2], np.int32), r"halo_indices\[1\] is 2; allowed are 0 to 1"),
    ("send_rows", np.array([0, -1], np.int32), r"send_rows\[1\] is -1"),
    ("halo_counts", np.array([0, 1]), r"halo_counts has the sum 1, but there are 2 rows"),
    ("owned_weights", np.ones(3, np.float32), r"owned_weights has shape \(3,\), but must have 10 rows"),
    ("owned", np.array([0, 1, 2, 3, 4, 12]), r"owned\[5\] is 12; allowed are 0 to 11"),
    ("features", sp.csr_array((np.ones(5), np.full(5, 5), [0, 1, 2, 3, 4, *[5] * 8]), (12, 5)), r"indices\[0\] is 5"),
    ("labels", np.zeros(11, np.int64), "has 11 rows, but the graph has 12 nodes"),
])  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(name: str, array: Any, words: str, tmp_path: Path) -> None:
    """Their author computes right hashes of them; an index past the end would read the memory behind an array."""
    graph, parts = SPARSE_RING, _parts(SPARSE_RING)
    if name in {"features", "labels"}:
        graph = replace(graph, **{name: array})
    else:
        parts[0] = replace(parts[0], **{name: array})
    _write(tmp_path / "ring", graph, parts)
    with pytest.raises(InputError, match=words + ".*delete the partition"):
        _read(tmp_path / "ring")
