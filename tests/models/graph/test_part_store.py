"""Parts on disk: whole or not at all, checked byte by byte, nobody else's, hashed once; from a data set to a part."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import unilaunch_graph as ug
from graphs_by_hand import make_directed_graph, make_graph, parts_of, read_graph
from threaded_ranks import RankInTurn, in_turns
from unilaunch.errors import InputError, RefusedTogetherError, SpecError
from unilaunch.folder.folder import OutputFolder
from unilaunch.folder.log import Log
from unilaunch.interfaces.backend import Placement
from unilaunch.interfaces.model import Session
from unilaunch.interfaces.world import LauncherInfo, count_world
from unilaunch_gcn.options import refuse_untrainable
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph.data import hashes
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.data.hashes import hash_file, remember
from unilaunch_graph.new_files import folder_beside
from unilaunch_graph.partition import preparation, store
from unilaunch_graph.partition.cut import Order, split_parts
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.store import Origin, Partition, PartReader, read_part, write_parts
from unilaunch_graph.partition_command import PartitionCommand, PartitionSpec
from unilaunch_graph.spec import DataSpec

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


def test_a_changed_file_is_hashed_again(tmp_path: Path, cache: Path) -> None:
    """Of the same size and the same time of change too: a file that was moved there; also one of several files."""
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"before")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashes, "_SETTLED", 2_000_000_000)  # two contents within a tick of the clock have one time
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
    for memory in cache.iterdir():
        memory.write_bytes(b"a\nb\nc\n")
    assert hash_file(path) == hashlib.sha256(path.read_bytes()).hexdigest()


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


@pytest.mark.parametrize(("damage", "words"), [
    (lambda f: (f / "part.0" / "halo.npy").unlink(), r"halo\.npy: is missing: delete the partition"),
    (lambda f: _manifest(f).unlink(), r"manifest\.json: this part is missing"),
    (lambda f: _change_manifest(f, num_parts=7), r"manifest\.json: damaged, its SHA-256"),
    (lambda f: _change_manifest(f, sha256=""), r"manifest\.json: damaged, its SHA-256"),
    (lambda f: _change_manifest(f, keeps_hash=True, cut="another"), "made from other data"),
    (lambda f: _change_manifest(f, keeps_hash=True, index=1), "part 1 of 2 of ring"),
    (lambda f: _change_manifest(f, keeps_hash=True, arrays={"owned_edge.../x": {"size": 1, "sha256": ""}}),
     "'owned_edge.../x' is no name of an array"),
    (lambda f: next(f.with_name("nodes").glob("split-*")).unlink(), r"split-.*\.npy: is missing"),
    (lambda f: store.nodes_file(f, "print").write_text("{}"), r"print\.json: damaged"),
])  # fmt: skip
def test_damage_is_one_line_with_the_file(damage: Callable[[Path], object], words: str, folder: Path) -> None:
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


_PAIRS = [(0, 1), (1, 2), (5, 6), (0, 6)]
_PLAIN, _DIRECTED = make_graph(7, _PAIRS), make_directed_graph(7, [*_PAIRS, (3, 3), (0, 1)])
GRAPHS: dict[str, Graph] = {
    "dense": _PLAIN,
    "sparse": replace(_PLAIN, features=sp.csr_array(np.eye(7, 5, dtype=np.float32))),
    "directed": replace(_DIRECTED, labels=np.eye(7, 3, dtype=np.uint8)),
    "named": replace(_PLAIN, node_arrays={"year": np.arange(7) + 2**40}, labels=np.linspace(0, 1, 7, dtype="f4")),
}


@pytest.mark.parametrize("owner", [np.zeros(7, np.int64), np.arange(7) % 2 * 2], ids=["one", "three, one empty"])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_array_of_every_part_is_the_same(name: str, owner: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Each field of a part, whose nodes stand in no order, read in small blocks. Edges are mapped, many rows too."""
    for limit, value in (("_BLOCK", 50), ("_STEP", 100), ("_SHARE", 0.0)):
        monkeypatch.setattr(store, limit, value)
    graph, num_parts = GRAPHS[name], int(owner.max()) + 1
    nodes = np.lexsort((np.arange(7) * 5 % 7, owner))
    begins = np.searchsorted(owner[nodes], np.arange(num_parts + 1))
    written = list(split_parts(graph, Order(nodes, np.argsort(nodes).astype(np.int32), begins)))
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
    """A partition whose files are damaged and put right again."""
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


def _prepare(options: DataSpec, hosts: Sequence[str], output: Path, **more: Any) -> list[Part]:
    """Return each rank's part; *hosts* names each rank's host."""
    size = len(hosts)

    def prepare(rank: int, peers: RankInTurn) -> Part:
        world = count_world(LauncherInfo("threads", rank, size, None, None, "run", {}), list(hosts), hosts[rank])
        folder = OutputFolder(output, rank, size, "run")
        folder.rank_dir.mkdir(parents=True)
        session = Session(world, Placement("cpu", 0, 1), peers, folder, Log(level="CRITICAL"), seed=0)
        return preparation.prepare_part(options, session, **more)

    return in_turns(size, prepare)


def _partition(options: DataSpec, num_parts: int = 2, *, as_given: bool = True) -> Partition:
    return preparation.prepare(options, num_parts, Log(level="CRITICAL"), as_given=as_given)


def _write_graph(folder: Path, **changed: Any) -> str:
    """Write a graph of 60 nodes as a folder, with other arrays than the usual ones."""
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {"x": draw.random((60, 8)), "y": np.arange(60) % 3, "split": (0.5, 0.25, 0.25)}
    return str(ug.from_edges(draw.integers(0, 60, (2, 200)), folder, overwrite=True, **arrays | changed))


def test_one_rank_of_each_host_checks_what_its_ranks_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole graph, where ranks divide columns: a host that has files of its own may have damaged ones."""
    checks: dict[int, bool] = {}
    opened = PartReader.open

    def load(partition: Partition, index: int, num_parts: int, *, checks_shared: bool) -> PartReader:
        checks[index] = checks_shared
        return opened(partition, index, num_parts, checks_shared=checks_shared)

    monkeypatch.setattr(PartReader, "open", load)
    options = DataSpec(dataset=_write_graph(tmp_path / "graph"), data_dir=tmp_path, parallel="tensor")
    parts = _prepare(options, ["a", "a", "b", "b"], tmp_path / "out")
    assert checks == {0: True, 1: False, 2: True, 3: False}
    assert sorted(np.concatenate([part.owned for part in parts]).tolist()) == list(range(60))


def test_a_graph_that_is_refused_is_not_divided(tmp_path: Path) -> None:
    """It was divided and written first; a partition that is there already is refused by every rank too."""
    dataset = _write_graph(tmp_path / "own", edge_weight=-np.ones(200))
    options = DataSpec(dataset=dataset, data_dir=tmp_path)
    trained = GcnSpec(dataset="own", conv="sage")

    def check(graph: Graph | Part) -> None:
        refuse_untrainable(trained, graph, "cpu")

    for is_there in (False, True):
        with pytest.raises(RefusedTogetherError, match="own: an edge has the weight -1") as caught:
            _prepare(options, ["a", "a"], tmp_path / f"run {is_there}", as_given=True, check=check)
        assert caught.value.exit_code == 2
        assert (tmp_path / "partitions").exists() == is_there
        _prepare(options, ["a", "a"], tmp_path / f"predict {is_there}", as_given=True)


def test_an_incomplete_partition_is_refused_before_the_graph_is_read(tmp_path: Path) -> None:
    options = DataSpec(dataset="sbm", data_dir=tmp_path)
    folder = _partition(options, 2, as_given=False).folder
    shutil.rmtree(folder / "part.1")
    with pytest.raises(InputError, match=r"incomplete, part\.1 is missing: delete it"):
        _partition(options, 2, as_given=False)


def test_one_partition_for_both_forms_of_a_symmetric_set_and_two_of_others(tmp_path: Path) -> None:
    for name, folders in (("sbm", 1), (_write_graph(tmp_path / "own"), 2)):
        folder = tmp_path / name[-3:]
        given = {"dataset": Path(name), "data_dir": tmp_path, "partition_dir": folder, "num_parts": 2}
        options = PartitionSpec.model_validate({**given, "edges": "given"})
        assert PartitionCommand().run(options) == 0
        parts = [read_part(_partition(options, as_given=as_given), 0, 2) for as_given in (False, True)]
        assert [part.is_directed for part in parts] == [False, folders == 2]
        assert len(list(folder.glob("*/part.0"))) == folders


@pytest.mark.parametrize("asked", [None, True, False])
@pytest.mark.parametrize("name", ["sbm", "own"])
def test_only_bags_of_words_are_normalised_by_default_and_a_line_says_so(
    name: str, asked: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = name if name == "sbm" else _write_graph(tmp_path / name, x=np.full((60, 2), 3.0))
    graph = preparation.read_graph(DataSpec(dataset=dataset, data_dir=tmp_path, normalize_features=asked), Log())
    is_divided = name == "sbm" if asked is None else asked
    assert (graph.features.max() < 1) == is_divided
    assert ("divided by their sum" in capsys.readouterr().err) == (is_divided and asked is None)


def test_a_script_is_told_of_a_long_cut(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(preparation, "MANY_EDGES", 10)
    folder = _write_graph(tmp_path / "own")
    for _ in range(2):
        ug.load(folder, framework="torch", data_dir=tmp_path)
    edges = len(read_graph(folder).structure().indices) // 2
    assert capsys.readouterr().err == f"unilaunch_graph: cutting 60 nodes and {edges} edges into 1 part\n"


@pytest.mark.parametrize("name", ["graph", "graph.npz"])
def test_other_rows_on_the_same_edges_are_no_new_cut(name: str, tmp_path: Path) -> None:
    """Another mask, label or feature: only that array is written; a folder's arrays stay in the folder."""
    options = DataSpec(dataset=str(tmp_path / name), data_dir=tmp_path)
    before: set[tuple[str, int]] = set()
    changes: dict[str, Any] = {"none": {}, "split": {"split": (0.2, 0.2, 0.6)}, "labels": {"y": np.arange(60) % 2}}
    for change, arrays in (changes | {"features": {"x": np.random.default_rng(1).random((60, 8))}}).items():
        folder = Path(_write_graph(tmp_path / "graph", **arrays))
        np.savez(tmp_path / "graph.npz", **{path.stem: np.load(path) for path in folder.glob("*.npy")})
        partition, graph = _partition(options), read_graph(options.dataset)
        files = [path for path in (tmp_path / "partitions").rglob("*.npy") if path.is_file()]
        now = {(path.name, path.stat().st_mtime_ns) for path in files}
        written = {path.partition("-")[0] for path, _ in now - before}
        assert now >= before
        assert ("features" in written) == (name == "graph.npz" and change in {"none", "features"})
        assert change == "none" or written - {change} <= {"split"}
        assert change != "split" or written
        before = now
        for part in (read_part(partition, index, 2) for index in range(2)):
            for array in ("features", "labels", "split"):
                np.testing.assert_array_equal(getattr(part, array), getattr(graph, array)[part.owned])
            assert part.split_sizes == graph.split_sizes
    assert len(list((tmp_path / "partitions").glob("*/part.0"))) == 1


def test_jobs_that_stage_one_graph_each_read_their_own_folder(tmp_path: Path) -> None:
    cuts = []
    for job in "ab":
        staged = _write_graph(tmp_path / job)
        cuts += [_partition(DataSpec(dataset=staged, data_dir=tmp_path)) for _ in range(2)]
    x = np.load(tmp_path / "a" / "x.npy")
    assert len({cut.fingerprint for cut in cuts}) == 1
    assert not list(tmp_path.glob("partitions/*-nodes/features-*"))
    shutil.rmtree(tmp_path / "a")
    for cut in cuts[2:]:
        part = read_part(cut, 1, 2)
        np.testing.assert_array_equal(part.features, x[part.owned])
    with pytest.raises(InputError, match=r"a/[xy]\.npy: is missing"):
        read_part(cuts[0], 0, 2)


def test_a_damaged_copy_of_the_rows_is_named_and_made_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = DataSpec(dataset=_write_graph(tmp_path / "graph"), data_dir=tmp_path)
    first = _partition(options)
    (split,) = (tmp_path / "partitions" / "graph-nodes").glob("split-*.npy")
    whole = split.read_bytes()
    split.write_bytes(whole[:-1] + b"\x07")
    assert preparation.prepare(options, 2, Log(), as_given=True) == first
    assert f"{split}: was damaged: written anew" in capsys.readouterr().err
    assert split.read_bytes() == whole


def test_a_partition_of_ones_own_is_kept_as_it_is(tmp_path: Path) -> None:
    owner = np.random.default_rng(0).integers(0, 3, 60)
    np.save(tmp_path / "owner.npy", owner.astype(np.int32))
    np.savetxt(tmp_path / "graph.part.3", owner, "%d")
    folder = _write_graph(tmp_path / "graph")
    for file in ("owner.npy", "graph.part.3"):
        options = DataSpec(dataset=folder, data_dir=tmp_path, owner=tmp_path / file)
        for part in _prepare(options, ["a", "a", "b"], tmp_path / f"out of {file}", as_given=True):
            np.testing.assert_array_equal(np.sort(part.owned), np.flatnonzero(owner == part.index))
    assert len(list((tmp_path / "partitions").glob("*/part.0"))) == 1


@pytest.mark.parametrize(("owner", "options", "words"), [
    (np.arange(60) % 3, {}, "owner: names 3 parts, 0 to 2, but there are 2 ranks"),
    (np.arange(59) % 2, {}, "owner: 59 numbers, but the graph has 60 nodes"),
    (np.full(60, 0.5), {}, r"whole numbers \(num_nodes,\), not float64"),
    (None, {}, r"owner\.npy: cannot be read: No such file"),
    (None, {"partitioner": "metis"}, "owner: must be left out beside partitioner"),
    (None, {"parallel": "tensor"}, "owner: must be left out beside parallel"),
    (None, {"owner": None, "gdc_top_k": 3}, "gdc_top_k: must be left out without use_gdc"),
    (None, {"owner": None, "use_gdc": True}, "use_gdc: a diffused graph is for the model gcn"),
])  # fmt: skip
def test_owners_and_options_that_do_not_fit_are_refused(owner: Any, options: Any, words: str, tmp_path: Path) -> None:
    if owner is not None:
        np.save(tmp_path / "owner.npy", owner)
    given = {"dataset": _write_graph(tmp_path / "graph"), "data_dir": tmp_path, "owner": tmp_path / "owner.npy"}
    with pytest.raises((InputError, SpecError), match=words):
        _partition(DataSpec(**given | options))
    assert not (tmp_path / "partitions").exists()
