"""PyTorch's tensors from and to numpy arrays, for values that are sent between processes."""

from typing import Any

import torch


def to_array(value: Any) -> tuple[Any, str] | None:
    """Return a tensor as a numpy array and its type; None if *value* is no tensor.

    Raises:
        ValueError: It is a sparse tensor.
    """
    if not isinstance(value, torch.Tensor):
        return None
    if value.layout != torch.strided:
        raise ValueError("a sparse tensor: send value.to_dense(), or its indices and values")
    name = str(value.dtype).removeprefix("torch.")
    try:
        return value.numpy(force=True), name
    except TypeError:  # numpy has no bfloat16; float32 holds it exactly
        return value.float().numpy(force=True), name


def to_tensor(array: Any, type_name: str) -> torch.Tensor:
    """Return the tensor of an array, of the type that it had."""
    return torch.from_numpy(array).to(getattr(torch, type_name))
