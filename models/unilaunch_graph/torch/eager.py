"""Whether tensors hold numbers."""

import torch
from torch.autograd import forward_ad


def is_eager() -> bool:
    """Return whether tensors hold numbers now: not in torch.compile, torch.func or forward-mode derivatives."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None  # noqa: SLF001  (torch has no other name for it)
        and forward_ad._current_level < 0  # noqa: SLF001
    )
