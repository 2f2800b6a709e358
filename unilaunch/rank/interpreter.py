"""What a rank changes in Python's interpreter: collection during an import, what it registers, and how it ends."""

import atexit
import ctypes
import functools
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unilaunch.rank.status import Status

#: The base of all files, also of a program's own classes. io.IOBase, an abstract class, is 100 times slower to compare.
_FILE: type = io.IOBase.__bases__[0]
#: Objects that Python itself has frozen: some hundred in 3.12, none in others.
_FROZEN = gc.get_freeze_count()
#: Packages whose exit functions save nothing of the user's.
_FRAMEWORKS = frozenset({"torch", "mindspore", "mpi4py", "numpy", "torch_geometric", "loguru", "joblib"})


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector inside the block; what the block has created is old for it afterwards.

    A framework's import creates 250,000 long-lived objects, and no garbage: searching them takes a tenth of the import
    (`benchmarks/startup.py`), and a search after it as long again, in each rank that was forked since: it writes to
    every object, so that the rank gets its own copy of the pages.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() <= _FROZEN:  # a program may have frozen its own, which then stay so
            gc.freeze()
            gc.unfreeze()  # into the oldest generation, without a search
        if was_on:
            gc.enable()


def run_rank_and_end(be_rank: Callable[["Status"], int], status: "Status") -> int:
    """Do the rank's work. A rank that ends before the others must not wait for them in MPI_Finalize."""
    code = be_rank(status)
    is_early = status.failed or status.left_alone
    if is_early:
        flush_files()  # first: the agent kills a failed rank whose threads or exit functions take long
        if status.registrations.has_exit_functions or _has_threads():
            status.registrations.tell_saving()
        if status.runs_program:
            gc.collect()  # as after a program that has not failed: see `do_task`
        end_alone(-signal.SIGTERM if status.terminated else code)
    if not status.runs_program and "triton._C.libtriton" not in sys.modules:  # Triton would report leaks
        gc.freeze()  # nothing of a user's is left to destroy: the interpreter ends in half of the time
    if not is_early:
        with suppress(OSError):  # the program may have closed every descriptor
            status.connection.close()
    return code


def _has_threads() -> bool:
    """Return whether the program has threads that Python's end waits for, such as one that writes a checkpoint."""
    return any(not (each.daemon or each is threading.main_thread()) for each in threading.enumerate())


def run_exit_functions() -> None:
    """Wait for the program's threads, then run its exit functions; a second call does nothing."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  (there is no public name)
    atexit._run_exitfuncs()  # noqa: SLF001  (nor here)


def flush_files() -> None:
    """Flush standard output, standard error, and every file that the program has not closed."""
    gc.unfreeze()  # the search does not see what the program has frozen
    objects = gc.get_objects()
    kinds = {kind for kind in {*map(type, objects)} if issubclass(kind, _FILE)}
    for file in (sys.stdout, sys.stderr, *(each for each in objects if type(each) in kinds)):
        with suppress(Exception):  # None, closed, a full disk, or an object of the program's
            file.flush()


def end_alone(code: int) -> None:
    """Let this process end when Python has destroyed the program's objects, before the exit functions of C libraries.

    To be called last, before the interpreter's usual exit. The program's objects write and close their files, as in
    plain Python. Among the exit functions of C libraries is MPI_Finalize, which would wait for the other ranks.

    Args:
        code: The exit code; -N to end by signal N.
    """
    sys._unilaunch_last = _Last(code)  # type: ignore[attr-defined]  # noqa: SLF001  (sys is cleared last)


class _Last:
    """An object whose end is the end of the process. Modules are cleared by then: it holds what it needs."""

    def __init__(self, code: int) -> None:
        self.code, self.libc, self.exit = code, ctypes.CDLL(None), os._exit
        self.streams, self.closed = (sys.__stdout__, sys.__stderr__), (ValueError, OSError, AttributeError)

    def __del__(self) -> None:
        for stream in self.streams:  # what destroyed objects have printed
            try:  # noqa: SIM105  (contextlib is cleared)
                stream.flush()  # type: ignore[union-attr]
            except self.closed:
                pass
        self.libc.fflush(None)  # the buffers of C
        if self.code < 0:
            self.libc.signal(-self.code, None)  # the default action
            self.libc.kill(self.libc.getpid(), -self.code)
        self.exit(self.code)


class Registrations:
    """What a program registers for its end, from `watch` on: a handler of SIGTERM, functions that atexit calls.

    The agent gives a rank that saves the time of --grace also where another rank has failed; all others are ended at
    once.

    Args:
        tell: Called when the program begins to save.

    Attributes:
        has_exit_functions: Whether the program, or a library that is no framework, has registered an exit function.
    """

    def __init__(self, tell: Callable[[], object]) -> None:
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
