"""Values that travel: what is packed comes back with its type, its shape and its bits, and no pickle is read."""

import json
import pickle
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from unilaunch.folder.values import into_files, into_text, pack, unpack

TYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "datetime64[s]"]


def _sent(value: Any, folder: Path) -> list[Any]:
    """Return the value as each way brings it: in the text, in files, and in files that are carried."""
    text = json.loads(json.dumps(pack(value, into_text)))
    files = json.loads(json.dumps(pack(value, into_files(folder, "value"))))
    whole = json.loads(json.dumps(pack(value, into_files(folder, "absolute", absolute=True))))
    return [unpack(text, None), unpack(files, folder), unpack(whole, None)]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(TYPES).flatmap(lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=0, min_side=0))),
    st.booleans(),
)
def test_an_array_comes_back_as_it_was(array: Any, turned: bool) -> None:  # noqa: FBT001
    """Of every type and shape, empty ones, and in either order of its axes."""
    value = array.T if turned else array
    back = unpack(json.loads(json.dumps(pack({"a": [value, 1]}, into_text))), None)["a"][0]
    assert (back.dtype, back.shape) == (value.dtype, value.shape)
    np.testing.assert_array_equal(back, value)


def test_values_come_back_by_every_way(tmp_path: Path) -> None:
    """Numbers, text, arrays, scalars and tensors in lists and dicts; tensors on cpu, of the type that they had."""
    draw = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    half = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
    spore = mindspore.Tensor(np.arange(4).reshape(2, 2), mindspore.float16)
    rough = mindspore.Tensor(np.array([0.5, 3.0]), mindspore.bfloat16)
    value = {
        "plain": [None, True, 3, 0.5, "text", (1, 2)], "array": np.arange(6.0).reshape(2, 3)[:, ::2],
        "scalar": np.float32(0.1), "torch": draw.t(), "half": half, "truth": torch.tensor(True),
        "mindspore": spore, "rough": rough, "yes": mindspore.Tensor([True]),
    }  # fmt: skip
    for back in _sent(value, tmp_path):
        assert back["plain"] == [None, True, 3, 0.5, "text", [1, 2]]
        np.testing.assert_array_equal(back["array"], value["array"])
        assert (type(back["scalar"]), back["scalar"]) == (np.float32, value["scalar"])
        assert torch.equal(back["torch"], draw.detach().t())
        assert not back["torch"].requires_grad
        assert (back["half"].dtype, back["half"].tolist()) == (torch.bfloat16, [[1.5, -2.0]])
        assert back["truth"].item() is True
        assert (back["mindspore"].dtype, back["mindspore"].asnumpy().tolist()) == (mindspore.float16, [[0, 1], [2, 3]])
        assert back["rough"].dtype == mindspore.bfloat16
        assert back["rough"].astype(mindspore.float32).asnumpy().tolist() == [0.5, 3.0]
        assert back["yes"].dtype == mindspore.bool_


def test_numbers_that_json_does_not_have_come_back(tmp_path: Path) -> None:
    """After a training of hours one NaN may not cost the result; the JSON itself is one that every reader reads."""
    value = {"a": [float("nan"), float("inf"), -float("inf")], 1: np.float64("nan")}
    json.dumps(pack(value, into_text), allow_nan=False)
    for back in _sent(value, tmp_path):
        assert [repr(one) for one in (*back["a"], back["1"])] == ["nan", "inf", "-inf", "nan"]


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, {"a": [{True: 0, "true": 1}]}, {None: 0, "null": 1}])
def test_no_entry_of_a_dict_is_lost(value: Any) -> None:
    with pytest.raises(ValueError, match="the same text"):
        pack(value, into_text)


MASKED = np.ma.array([1, 2], mask=[True, False])  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("value", [
    np.array([object()]), MASKED, torch.eye(2).to_sparse(), {"__npy__": "array"},
    [np.array([(1, "a")], dtype=[("n", "i4"), ("t", "O")])],
], ids=["objects", "masked", "sparse", "reserved", "objects in a record"])  # fmt: skip
def test_what_only_a_pickle_could_hold_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"allow_pickle|masked|sparse|reserved"):
        pack(value, into_text)


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    """Whatever a file claims to be."""
    np.save(tmp_path / "value.0.npy", np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        unpack({"__npy__": "array", "file": "value.0.npy"}, tmp_path)
    (tmp_path / "value.1.npy").write_bytes(pickle.dumps([1]))
    with pytest.raises(ValueError, match="magic"):
        unpack({"__npy__": "array", "file": "value.1.npy"}, tmp_path)
    with pytest.raises(FileNotFoundError):  # a name is one in the folder, whatever path it claims
        unpack({"__npy__": "array", "file": str(tmp_path / "value.0.npy")}, tmp_path / "elsewhere")
