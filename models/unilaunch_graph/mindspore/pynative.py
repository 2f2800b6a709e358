"""Refuse to be compiled: MindSpore's compiler names the syntax that it does not know, and not the reason."""

from mindspore import ops
from typing_extensions import override

from unilaunch.errors import SpecError


class _OnlyPyNative(ops.PrimitiveWithInfer):  # type: ignore[misc]
    """An operator that does nothing in PyNative mode, and that the compiler cannot infer."""

    def __init__(self) -> None:
        super().__init__("only_pynative")

    @override
    def __call__(self) -> None:
        """Do nothing."""

    @override
    def __infer__(self) -> None:
        raise SpecError(
            "ug.mindspore works in PyNative mode: call it outside of functions that ms.jit compiles, and leave out "
            "ms.set_context(mode=ms.GRAPH_MODE)"
        )


#: Called first in what a user may compile, outside of syntax that the compiler does not know.
only_pynative = _OnlyPyNative()
