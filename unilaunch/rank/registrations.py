"""Whether a program uses the time at its end: by a handler of SIGTERM, or by functions that atexit calls.

The agent gives such a rank the time of --grace also where another rank has failed; all others are ended at once.
"""

import atexit
import functools
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

#: Packages whose exit functions save nothing of the user's.
_FRAMEWORKS = frozenset({"torch", "mindspore", "mpi4py", "numpy", "torch_geometric", "loguru", "joblib"})


class Registrations:
    """What a program registers for its end, from `watch` on.

    Args:
        tell: Called when the program begins to save.

    Attributes:
        has_exit_functions: Whether the program, or a library that is no framework, has registered an exit function.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell, self._own = tell, os.getpid()
        self.has_exit_functions = False

    def watch(self) -> None:
        """Let `signal.signal` and `atexit.register` tell this object what the program gives them."""
        native_signal, native_get = signal.signal, signal.getsignal
        native_register: Callable[..., Any] = atexit.register

        @functools.wraps(native_signal)
        def set_handler(number: int, handler: Any) -> Any:
            wrapped = _Told(handler, self) if number == signal.SIGTERM and callable(handler) else handler
            return _as_given(native_signal(number, wrapped))

        @functools.wraps(native_get)
        def get_handler(number: int) -> Any:
            return _as_given(native_get(number))

        @functools.wraps(native_register)
        def register(function: Any, *args: Any, **options: Any) -> Any:
            self.has_exit_functions |= _is_of_user(function)
            return native_register(function, *args, **options)

        replaced: Any = signal, atexit
        replaced[0].signal, replaced[0].getsignal, replaced[1].register = set_handler, get_handler, register

    def tell_saving(self) -> None:
        """Tell that the program begins to save; a process that it has forked is no rank."""
        if os.getpid() == self._own:
            self._tell()


class _Told:
    """A handler of the program's, of whose begin the agent is told."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any], registrations: Registrations) -> None:
        self.handler, self._registrations = handler, registrations

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        """Tell of it, and handle the signal."""
        self._registrations.tell_saving()
        return self.handler(number, frame)


def _as_given(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Told) else handler


def _is_of_user(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    top = str(getattr(function, "__module__", "") or "").partition(".")[0]
    return not (top in sys.stdlib_module_names or top in _FRAMEWORKS or top.startswith("unilaunch"))
