"""From a data set to this rank's part, by ranks that are threads."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest

from threaded_ranks import RankInTurn, in_turns
from unilaunch.errors import InputError, RefusedTogetherError, SpecError
from unilaunch.folder.folder import OutputFolder
from unilaunch.folder.log import Log
from unilaunch.interfaces.backend import Placement
from unilaunch.interfaces.model import Session
from unilaunch.interfaces.world import LauncherInfo, count_world
from unilaunch.rank.current import Member, join
from unilaunch_gcn.options import refuse_untrainable
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph import loading
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.partition import preparation, reading
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.store import load_part
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


def test_one_rank_of_each_host_checks_what_its_ranks_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole graph, where ranks divide columns: a host that has files of its own may have damaged ones."""
    checks: dict[int, bool] = {}

    def load(folder: Path, index: int, num_parts: int, fingerprint: str, *, checks_shared: bool) -> Part:
        checks[index] = checks_shared
        return load_part(folder, index, num_parts, fingerprint, checks_shared=checks_shared)

    monkeypatch.setattr(preparation, "load_part", load)
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {"edge_index": draw.integers(0, 40, (2, 90)), "y": np.arange(40) % 3}
    np.savez(tmp_path / "graph.npz", x=draw.random((40, 5)), **arrays)
    options = DataSpec(dataset=str(tmp_path / "graph.npz"), data_dir=tmp_path, parallel="tensor")
    parts = _prepare(options, ["a", "a", "b", "b"], tmp_path / "out")
    assert checks == {0: True, 1: False, 2: True, 3: False}
    assert sorted(np.concatenate([part.owned for part in parts]).tolist()) == list(range(40))
    unused = options.model_copy(update={"partitioner": "absent"})  # no partitioner divides columns
    assert preparation.prepare(unused, 4, Log()) == preparation.prepare(options, 4, Log())


@pytest.mark.parametrize(("arrays", "words"), [
    ({}, "no node to train on"), ({"y": np.arange(4) % 2, "edge_weight": -np.ones(2)}, "an edge has the weight -1"),
], ids=["no labels", "negative weight"])  # fmt: skip
def test_a_graph_that_is_refused_is_not_divided(arrays: dict[str, Any], words: str, tmp_path: Path) -> None:
    """It was divided and written first; a partition that is there already is refused by every rank too."""
    np.savez(tmp_path / "own.npz", x=np.eye(4), edge_index=np.array([[0, 1], [1, 0]]), **arrays)
    options = DataSpec(dataset=str(tmp_path / "own.npz"), data_dir=tmp_path)
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
    """It was cut again at each start, and then not written, since its folder exists."""
    options = DataSpec(dataset="sbm", data_dir=tmp_path)
    folder = preparation.prepare(options, 2, Log(level="CRITICAL")).folder
    shutil.rmtree(folder / "part.1")
    with pytest.raises(InputError, match=r"incomplete, part\.1 is missing: delete it"):
        preparation.prepare(options, 2, Log(level="CRITICAL"))


def test_a_folder_that_cannot_be_looked_into_is_refused(tmp_path: Path) -> None:
    """A name that is too long; a folder that may not be entered takes the same way."""
    options = DataSpec(dataset="sbm", data_dir=tmp_path, partition_dir=tmp_path / ("a" * 300))
    with pytest.raises(InputError, match="cannot be read: File name too long: choose another --partition-dir"):
        preparation.prepare(options, 2, Log(level="CRITICAL"))
    options = DataSpec(dataset="sbm", data_dir=tmp_path, partition_dir=Path("~nobody-of-this-name/a"))
    with pytest.raises(InputError, match=r"cannot be read: Could not determine home directory.*--partition-dir"):
        preparation.prepare(options, 2, Log(level="CRITICAL"))


def test_ranks_of_a_directed_graph_agree_on_what_they_send(tmp_path: Path) -> None:
    """What a rank sends has its place in the halo of the other, also where it receives nothing in return."""
    edges = np.array([[0, 1, 2, 2, 4, 4, 4], [3, 3, 3, 5, 1, 0, 4]])
    np.savez(tmp_path / "own.npz", x=np.eye(6), y=np.arange(6) % 2, edge_index=edges)
    options = DataSpec(dataset=str(tmp_path / "own.npz"), data_dir=tmp_path)
    parts = _prepare(options, ["a", "a", "b"], tmp_path / "out", as_given=True)
    assert sum(part.num_halo for part in parts) == sum(len(part.send_rows) for part in parts) > 0
    assert sum(len(part.owned_indices) + len(part.halo_indices) for part in parts) == 7


def test_one_partition_for_both_forms_of_a_symmetric_set_and_two_of_others(tmp_path: Path) -> None:
    """`sbm` is symmetric by its definition; what a file holds is not known before it is read."""
    kept: dict[str, list[Part]] = {}
    draw = np.random.default_rng(0)
    edges = draw.integers(0, 30, (2, 90))
    arrays: dict[str, Any] = {"edge_index": edges, "edge_weight": draw.random(90), "edge_attr": draw.random((90, 2))}
    np.savez(tmp_path / "own.npz", x=draw.random((30, 5)), y=np.arange(30) % 3, **arrays)
    for name, folders in (("sbm", 1), (str(tmp_path / "own.npz"), 2)):
        folder = tmp_path / name[-3:]
        given = {"dataset": Path(name), "data_dir": tmp_path, "partition_dir": folder, "num_parts": 2}
        options = PartitionSpec.model_validate({**given, "edges": "given"})
        assert PartitionCommand().run(options) == 0
        for as_given in (False, True):
            kept[f"{name} {as_given}"] = [
                load_part(partition.folder, index, 2, partition.fingerprint)
                for partition in [preparation.prepare(options, 2, Log(level="CRITICAL"), as_given=as_given)]
                for index in range(2)
            ]
        assert len(list(folder.iterdir())) == folders
    own, symmetric = (kept[f"{tmp_path / 'own.npz'} {form}"] for form in (True, False))
    assert [part.is_directed for part in (*own, *symmetric)] == [True, True, False, False]
    features = [side["edge_attr"] for part in own for side in (part.owned_edge_arrays, part.halo_edge_arrays)]
    assert {array.shape[1] for array in features} == {2}
    assert sum(map(len, features)) == 90
    assert not any(part.owned_edge_arrays or part.halo_edge_arrays for part in symmetric)
    assert all(len(part.owned_weights) == len(part.owned_indices) for part in (*own, *symmetric))


def test_the_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no shell has replaced the ~."""
    monkeypatch.setenv("HOME", str(tmp_path))
    data, partitions = Path("~/data"), Path("~/data/partitions")
    for options in (DataSpec(dataset="sbm", data_dir=data), DataSpec(dataset="sbm", partition_dir=partitions)):
        made = preparation.prepare(options, 2, Log(level="CRITICAL")).folder
        assert made.parent == tmp_path / "data" / "partitions"


def test_options_of_a_diffusion_need_one() -> None:
    """But a spec that was written down says all defaults."""
    with pytest.raises(SpecError, match="gdc_top_k: must be left out without use_gdc"):
        DataSpec(gdc_top_k=3)
    with pytest.raises(SpecError, match="gdc_threshold: must be left out beside gdc_top_k"):
        DataSpec(use_gdc=True, gdc_top_k=3, gdc_threshold=0.1)
    assert DataSpec(gdc_top_k=3, use_gdc=True).gdc_top_k == 3
    assert DataSpec.model_validate(DataSpec().model_dump()) == DataSpec()


def test_what_a_network_of_ones_own_cannot_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of the option."""
    with pytest.raises(SpecError, match="use_gdc: a diffused graph is for the model gcn"):
        preparation.prepare(DataSpec(use_gdc=True), 2, Log(level="CRITICAL"), as_given=True)
    member = create_autospec(Member, instance=True, environ={})
    monkeypatch.setattr(loading, "join", create_autospec(join, return_value=member))
    with pytest.raises(SpecError, match="parallel='auto': a network of your own needs parallel='graph'"):
        loading.load_part("sbm", "cpu", {"parallel": "auto"})


def test_a_diffusion_of_weighted_edges_is_refused(tmp_path: Path) -> None:
    """It would not use the weights."""
    arrays: dict[str, Any] = {"edge_index": np.array([[0, 1], [1, 0]]), "edge_weight": np.array([2.0, 2])}
    np.savez(tmp_path / "own.npz", x=np.eye(2), y=np.arange(2), **arrays)
    with pytest.raises(InputError, match="--use-gdc diffuses a graph whose edges have no weights"):
        reading.read_graph(
            DataSpec(dataset=str(tmp_path / "own.npz"), data_dir=tmp_path, use_gdc=True), Log(level="CRITICAL")
        )


def test_only_bags_of_words_are_normalised_by_default_and_a_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a user's graph the features stay as they are; either can be asked for."""
    np.savez(tmp_path / "own.npz", x=np.full((4, 2), 3.0), y=np.arange(4) % 2, edge_index=np.zeros((2, 0), int))
    for name, is_divided in (("sbm", True), (str(tmp_path / "own.npz"), False)):
        for asked in (None, True, False):
            options = DataSpec(dataset=name, data_dir=tmp_path, normalize_features=asked)
            graph = reading.read_graph(options, Log())
            divided = is_divided if asked is None else asked
            assert (graph.features.max() >= 1) != divided
            said = "each node's features are divided by their sum, as in the GCN paper"
            assert (said in capsys.readouterr().err) == (divided and asked is None)
