"""MindSpore's tensors from and to numpy arrays, for values that are sent between processes."""

from typing import Any

import mindspore


def to_array(value: Any) -> tuple[Any, str] | None:
    """Return a tensor as a numpy array and its type; None if *value* is no tensor."""
    if not isinstance(value, mindspore.Tensor):
        return None
    name = str(value.dtype).lower()
    # numpy has no bfloat16; float32 holds it exactly
    return (value.astype(mindspore.float32) if name == "bfloat16" else value).asnumpy(), name


def to_tensor(array: Any, type_name: str) -> Any:
    """Return the tensor of an array, of the type that it had."""
    return mindspore.Tensor(array, getattr(mindspore, _NAMES.get(type_name, type_name)))


#: The name that MindSpore gives its boolean type, and the attribute that holds the type.
_NAMES = {"bool": "bool_"}
