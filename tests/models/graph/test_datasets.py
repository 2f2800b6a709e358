"""Data sets are found by name, fetched where they are missing, and read into the same graph everywhere."""

import hashlib
import pickle
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from unilaunch.errors import InputError
from unilaunch.interfaces import plugins
from unilaunch_graph.data import planetoid
from unilaunch_graph.data.dataset import raw_file
from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL
from unilaunch_graph.data.sbm import generate
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.data.split import draw_split


def _open(name: str, folder: Path | None = None, *, mirror: str | None = None) -> Any:
    return open_dataset(name, folder, mirror, 0, normalize_features=False)


@pytest.fixture
def tiny_citeseer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six known nodes and test nodes 9, 6 and 7, in files that are the public ones; node 8 is missing, as 15 are."""
    allx = sp.csr_matrix(np.arange(1, 13, dtype=np.float32).reshape(6, 2))
    ally = np.eye(2, dtype=np.int32)[[0, 1, 0, 1, 0, 1]]
    parts: dict[str, Any] = {
        "x": allx[:2], "y": ally[:2], "allx": allx, "ally": ally, "ty": np.eye(2, dtype=np.int32)[[1, 0, 1]],
        "tx": sp.csr_matrix(np.array([[90, 0], [60, 0], [0, 70]], np.float32)),
        "graph": {0: [1, 1, 0], 1: [0], 2: [9], 3: [4], 4: [3], 5: [], 6: [7], 7: [6], 8: [], 9: [2]},
    }  # fmt: skip
    contents = {part: pickle.dumps(value, protocol=2) for part, value in parts.items()} | {"test.index": b"9\n6\n7\n"}
    (tmp_path / "planetoid").mkdir()
    for part, content in contents.items():
        (tmp_path / "planetoid" / f"ind.citeseer.{part}").write_bytes(content)
        monkeypatch.setitem(planetoid.SHA256, f"ind.citeseer.{part}", hashlib.sha256(content).hexdigest())
    return tmp_path


class _Silent(SimpleHTTPRequestHandler):
    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a server of the files in tmp_path/served."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "served").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory=str(tmp_path / "served"))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


#: A data set as a distribution of its own brings it.
OUTSIDE = """
from unilaunch_graph.data.dataset import Dataset, Source
from unilaunch_graph.data.sbm import generate

class Twin(Source):
    def open(self, request):
        return Dataset(request.name, {"name": "twin", "folder": str(request.folder)}, generate, is_symmetric=True)
"""


def test_a_data_set_is_one_file_and_one_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From outside of this tree, as pip would install it."""
    info = tmp_path / "site" / "twins-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twins\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[unilaunch.datasets]\ntwin = twins:Twin\n")
    (info.parent / "twins.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(info.parent)
    monkeypatch.setattr(plugins, "_table", {})
    dataset = _open("twin", tmp_path)
    assert dataset.identity == {"name": "twin", "folder": str(tmp_path)}
    assert dataset.load().num_nodes == 3000
    with pytest.raises(InputError, match=r"did you mean 'twin'\?.*ogbn-papers100M, twin; and no graph at"):
        _open("twins", tmp_path)


@pytest.mark.parametrize(("name", "words"), [
    ("pubmde", r"no data set 'pubmde': did you mean 'pubmed'\?.* ogbn-papers100M; and no graph at .*/pubmde"),
    ("graph.npy", "no data set 'graph.npy': there are sbm, cora, citeseer, pubmed, reddit, ogbn-arxiv"),
    ("~no-such-user/graph.npz", "cannot be read"),
    ("a" * 300, "cannot be read"),
])  # fmt: skip
def test_unknown_names_are_refused_with_those_there_are(name: str, words: str) -> None:
    """The message proposes the nearest, lists the names, and says where a path was looked for."""
    with pytest.raises(InputError, match=words):
        _open(name)


def test_only_the_public_pickle_is_unpickled(tiny_citeseer: Path, tmp_path: Path) -> None:
    """A file of another hash is refused in one line that says what to do, and nothing in it is executed."""
    path = tiny_citeseer / "planetoid" / "ind.citeseer.ty"
    path.write_bytes(f"cos\nmkdir\n(S'{tmp_path / 'made'}'\ntR.".encode())  # makes a folder when it is unpickled
    with pytest.raises(InputError, match=rf"^{path}: is not the public file.*delete the file") as caught:
        _open("citeseer", tmp_path).load()
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "made").exists()


def test_sbm_is_the_same_everywhere() -> None:
    """Bit for bit: losses of the default data set can be compared between machines. A change needs a new VERSION."""
    graph = generate()
    words: Any = graph.features
    arrays = [graph.indptr, graph.indices, graph.labels, graph.split, words.data]
    arrays += [words.indptr.astype(np.int64), words.indices.astype(np.int64)]
    digest = hashlib.sha256(b"".join(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays))
    assert digest.hexdigest() == "e6c758f8b226615e3401dced99574f3e64738ed41f37ccf4a3aec3ed18fe9ab3"


@pytest.mark.system
def test_cora_is_read_as_published(shared_datasets: Path) -> None:
    """Counts of the literature, from the real files; their hashes are those that a download must have."""
    graph = _open("cora", shared_datasets).load()
    assert (graph.num_nodes, len(graph.indices), graph.num_features, graph.num_classes) == (2708, 2 * 5278, 1433, 7)
    for use, nodes in ((TRAIN, range(140)), (VAL, range(140, 640)), (TEST, range(1708, 2708))):
        assert np.flatnonzero(graph.split == use).tolist() == [*nodes]
    assert np.bincount(graph.labels).tolist() == [351, 217, 418, 818, 426, 298, 180]
    adjacency = sp.csr_array((np.ones(len(graph.indices)), graph.indices, graph.indptr))
    assert ((adjacency != adjacency.T).nnz, adjacency.diagonal().any()) == (0, False)


def test_missing_test_nodes_are_nodes_of_unknown_class(tiny_citeseer: Path) -> None:
    """As in Citeseer: node 8 has no features, no class and no part in the split; test rows go where they belong."""
    graph = _open("citeseer", tiny_citeseer).load()
    assert graph.features.toarray()[6:].tolist() == [[60, 0], [0, 70], [0, 0], [90, 0]]
    assert graph.labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, -1, 1]
    assert graph.split.tolist() == [TRAIN] * 2 + [VAL] * 4 + [TEST, TEST, NONE, TEST]
    assert graph.indices.tolist() == [1, 0, 9, 4, 3, 7, 6, 2]
    dtypes = [graph.indptr.dtype, graph.indices.dtype, graph.features.dtype, graph.labels.dtype, graph.split.dtype]
    assert dtypes == [np.int64, np.int32, np.float32, np.int64, np.uint8]


@pytest.mark.system
def test_missing_files_are_fetched_from_the_mirror(shared_datasets: Path, mirror: str, tmp_path: Path) -> None:
    """Real files, served by a mirror, arrive in the data folder and are read; the second time nothing is fetched."""
    (tmp_path / "served" / "planetoid").symlink_to(shared_datasets / "planetoid")
    fetched = _open("cora", tmp_path / "data", mirror=f"{mirror}/")
    assert fetched.load().num_nodes == 2708
    assert fetched.identity == _open("cora", tmp_path / "data", mirror="http://127.0.0.1:1").identity
    assert len(list((tmp_path / "data" / "planetoid").iterdir())) == 8


def test_a_file_with_another_hash_is_not_kept(mirror: str, tmp_path: Path) -> None:
    """What a mirror serves must be the published content."""
    (tmp_path / "served" / "raw").write_bytes(b"other")
    with pytest.raises(InputError, match="hash"):
        raw_file(tmp_path / "data" / "raw", f"{mirror}/raw", "0" * 64)
    assert list((tmp_path / "data").iterdir()) == []


def test_a_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line: the address, where the file can be put, and the variable that names a mirror."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    words = rf"^http://127\.0\.0\.1:1/base/planetoid/ind\.pubmed\.x: .*{tmp_path}/planetoid/ind.* UNILAUNCH_MIRROR"
    with pytest.raises(InputError, match=words) as caught:
        _open("pubmed", tmp_path, mirror="http://127.0.0.1:1/base")
    assert "\n" not in str(caught.value)


@given(st.lists(st.integers(-1, 4), max_size=300), st.integers(0, 2**32))
def test_a_drawn_split_shares_out_each_class(classes: list[int], seed: int) -> None:
    """20 to train on and 30 to validate with, fewer of a small class; never a node of unknown class; by seed."""
    labels = np.array(classes, np.int64)
    split = draw_split(labels, seed)
    assert (split[labels < 0] == NONE).all()
    for label in {*classes} - {-1}:
        none, train, val, test = np.bincount(split[labels == label], minlength=4)
        assert (none, 1 <= train <= 20, val <= 30) == (0, True, True)
        if train + val + test >= 80:
            assert (train, val) == (20, 30)
        else:
            assert (train >= val - 10, test >= val) == (True, True)
    np.testing.assert_array_equal(split, draw_split(labels, seed))
