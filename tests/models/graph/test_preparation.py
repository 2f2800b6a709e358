"""From a data set to this rank's part, by ranks that are threads."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unilaunch_graph as ug
from graphs_by_hand import read_graph
from threaded_ranks import RankInTurn, in_turns
from unilaunch.errors import InputError, RefusedTogetherError, SpecError
from unilaunch.folder.folder import OutputFolder
from unilaunch.folder.log import Log
from unilaunch.interfaces.backend import Placement
from unilaunch.interfaces.model import Session
from unilaunch.interfaces.world import LauncherInfo, count_world
from unilaunch_gcn.options import refuse_untrainable
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.partition import preparation
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.store import Partition, PartReader, read_part
from unilaunch_graph.partition_command import PartitionCommand, PartitionSpec
from unilaunch_graph.spec import DataSpec


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


def _write_npz(path: Path, num_nodes: int = 4, **changed: Any) -> str:
    """Write a graph, with other arrays than the usual ones; None: without."""
    draw = np.random.default_rng(0)
    arrays = {"x": draw.random((num_nodes, 8)), "y": np.arange(num_nodes) % 3}
    arrays |= {"edge_index": draw.integers(0, num_nodes, (2, 3 * num_nodes))} | changed
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return str(path)


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
    options = DataSpec(dataset=_write_npz(tmp_path / "graph.npz", 40), data_dir=tmp_path, parallel="tensor")
    parts = _prepare(options, ["a", "a", "b", "b"], tmp_path / "out")
    assert checks == {0: True, 1: False, 2: True, 3: False}
    assert sorted(np.concatenate([part.owned for part in parts]).tolist()) == list(range(40))


@pytest.mark.parametrize(("arrays", "words"), [
    ({"y": None}, "no node to train on"), ({"edge_weight": -np.ones(12)}, "an edge has the weight -1"),
], ids=["no labels", "negative weight"])  # fmt: skip
def test_a_graph_that_is_refused_is_not_divided(arrays: dict[str, Any], words: str, tmp_path: Path) -> None:
    """It was divided and written first; a partition that is there already is refused by every rank too."""
    options = DataSpec(dataset=_write_npz(tmp_path / "own.npz", **arrays), data_dir=tmp_path)
    trained = GcnSpec(dataset="own.npz", conv="sage")

    def check(graph: Graph | Part) -> None:
        refuse_untrainable(trained, graph, "cpu")

    for is_there in (False, True):
        with pytest.raises(RefusedTogetherError, match=rf"own\.npz: {words}") as caught:
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
    """`sbm` is symmetric by its definition; what a file holds is not known before it is read."""
    for name, folders in (("sbm", 1), (_write_npz(tmp_path / "own.npz", 30), 2)):
        folder = tmp_path / name[-3:]
        given = {"dataset": Path(name), "data_dir": tmp_path, "partition_dir": folder, "num_parts": 2}
        options = PartitionSpec.model_validate({**given, "edges": "given"})
        assert PartitionCommand().run(options) == 0
        parts = [read_part(_partition(options, as_given=as_given), 0, 2) for as_given in (False, True)]
        assert [part.is_directed for part in parts] == [False, folders == 2]
        assert len(list(folder.glob("*/part.0"))) == folders


@pytest.mark.parametrize("asked", [None, True, False])
@pytest.mark.parametrize("name", ["sbm", "own.npz"])
def test_only_bags_of_words_are_normalised_by_default_and_a_line_says_so(
    name: str, asked: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a user's graph the features stay as they are; either can be asked for."""
    dataset = name if name == "sbm" else _write_npz(tmp_path / name, x=np.full((4, 2), 3.0))
    graph = preparation.read_graph(DataSpec(dataset=dataset, data_dir=tmp_path, normalize_features=asked), Log())
    is_divided = name == "sbm" if asked is None else asked
    assert (graph.features.max() < 1) == is_divided
    assert ("divided by their sum" in capsys.readouterr().err) == (is_divided and asked is None)


def test_a_script_is_told_of_a_long_cut(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Of how many nodes, edges and parts, on standard error; nothing where no cut is made."""
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
    for change, arrays in {
        "none": {}, "split": {"split": (0.2, 0.2, 0.6)}, "labels": {"y": np.arange(60) % 2},
        "features": {"x": np.random.default_rng(1).random((60, 8))},
    }.items():  # fmt: skip
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
    """They share the cut, at the same time too; a folder that is gone is its own job's alone."""
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
    """From an .npy file, and from the text that gpmetis writes: one cut."""
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
    (None, {"balance": "edges"}, "owner: must be left out beside balance"),
    (None, {"parallel": "tensor"}, "owner: must be left out beside parallel"),
    (None, {"owner": None, "gdc_top_k": 3}, "gdc_top_k: must be left out without use_gdc"),
    (None, {"owner": None, "use_gdc": True, "gdc_top_k": 3, "gdc_threshold": 0.1},
     "gdc_threshold: must be left out beside gdc_top_k"),
    (None, {"owner": None, "use_gdc": True}, "use_gdc: a diffused graph is for the model gcn"),
])  # fmt: skip
def test_owners_and_options_that_do_not_fit_are_refused(owner: Any, options: Any, words: str, tmp_path: Path) -> None:
    """In one line, and nothing is written."""
    if owner is not None:
        np.save(tmp_path / "owner.npy", owner)
    given = {"dataset": _write_graph(tmp_path / "graph"), "data_dir": tmp_path, "owner": tmp_path / "owner.npy"}
    with pytest.raises((InputError, SpecError), match=words):
        _partition(DataSpec(**given | options))
    assert not (tmp_path / "partitions").exists()
