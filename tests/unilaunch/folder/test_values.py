"""Values that travel: what is packed comes back with its type, its shape and its bits, and no pickle is read."""

import json
import pickle
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
import torch

from unilaunch.folder.values import into_files, into_text, pack, unpack


def _sent(value: Any, folder: Path) -> list[Any]:
    """Return the value as each way brings it: in the text, in files, and in files that are carried."""
    ways = (into_text, into_files(folder, "value"), into_files(folder, "absolute", absolute=True))
    told = [json.loads(json.dumps(pack(value, way), allow_nan=False)) for way in ways]
    return [unpack(one, where) for one, where in zip(told, (None, folder, None), strict=True)]


def test_values_come_back_by_every_way(tmp_path: Path) -> None:
    """Numbers, text, arrays, scalars and tensors in lists and dicts; tensors on cpu; all of the type that they had."""
    plain, scalar = [None, True, 3, 0.5, "text", (1, 2)], np.float32(0.1)
    types = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "datetime64[s]"]
    arrays = [np.arange(6).reshape(2, 3).astype(kind) for kind in types]
    arrays += [arrays[0].T, arrays[1][:, ::2], np.zeros((0, 3)), np.array(7.5)]
    tensors = [
        torch.randn(3, 2, dtype=torch.float64, requires_grad=True).t(), torch.tensor(True),
        torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16), mindspore.Tensor([True]),
        mindspore.Tensor(np.arange(4).reshape(2, 2), mindspore.float16),
        mindspore.Tensor(np.array([0.5, 3.0]), mindspore.bfloat16),
    ]  # fmt: skip
    for back in _sent({"plain": plain, "arrays": arrays, "scalar": scalar, "tensors": tensors}, tmp_path):
        assert back["plain"] == [None, True, 3, 0.5, "text", [1, 2]]
        for theirs, ours in zip(back["arrays"], arrays, strict=True):
            assert (theirs.dtype, theirs.shape, theirs.tolist()) == (ours.dtype, ours.shape, ours.tolist())
        assert (type(back["scalar"]), back["scalar"]) == (np.float32, scalar)
        assert not back["tensors"][0].requires_grad
        for theirs, ours in zip(back["tensors"], tensors, strict=True):
            assert (type(theirs), theirs.dtype, theirs.tolist()) == (type(ours), ours.dtype, ours.tolist())


def test_numbers_that_json_does_not_have_come_back(tmp_path: Path) -> None:
    """After a training of hours one NaN may not cost the result; the JSON itself is one that every reader reads."""
    for back in _sent({"a": [float("nan"), float("inf"), -float("inf")], 1: np.float64("nan")}, tmp_path):
        assert [repr(one) for one in (*back["a"], back["1"])] == ["nan", "inf", "-inf", "nan"]


MASKED = np.ma.array([1, 2], mask=[True, False])  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(("value", "words"), [
    (np.array([object()]), "allow_pickle"), (MASKED, "masked"), (torch.eye(2).to_sparse(), "sparse"),
    ([np.array([(1, "a")], dtype=[("n", "i4"), ("t", "O")])], "allow_pickle"), ({"__npy__": "array"}, "reserved"),
    ({1: "a", "1": "b"}, "same text"), ({"a": [{True: 0, "true": 1}]}, "same text"), ({None: 0, "null": 1}, "same"),
])  # fmt: skip
def test_what_only_a_pickle_could_hold_and_a_lost_entry_are_refused(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pack(value, into_text)


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "value.0.npy", np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        unpack({"__npy__": "array", "file": "value.0.npy"}, tmp_path)
    (tmp_path / "value.1.npy").write_bytes(pickle.dumps([1]))
    with pytest.raises(ValueError, match="magic"):
        unpack({"__npy__": "array", "file": "value.1.npy"}, tmp_path)
    with pytest.raises(FileNotFoundError):  # a name is one in the folder, whatever path it claims
        unpack({"__npy__": "array", "file": str(tmp_path / "value.0.npy")}, tmp_path / "elsewhere")
