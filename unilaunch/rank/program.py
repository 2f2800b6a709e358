"""The user's own program: a script, a module or a function, run in this process as plain Python would run it."""

import ctypes
import importlib
import json
import linecache
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from unilaunch.errors import OutputError, SpecError
from unilaunch.folder.values import SENDABLE, into_files, pack, unpack
from unilaunch.json_value import JsonValue
from unilaunch.monitor.messages import LARGEST
from unilaunch.overriding import override
from unilaunch.rank.interpreter import end_alone, uncollected
from unilaunch.spec.target import LOADING, Target

if TYPE_CHECKING:
    from importlib.abc import MetaPathFinder
else:  # importing it takes 8 ms; Python needs only the methods
    MetaPathFinder = object

#: Most bytes of the value of a function or a model, as JSON: with its envelope the value is one message.
_LARGEST_VALUE = LARGEST - 4096
_LONG = 1 << 63  # of C
Hook = Callable[[ModuleType], None]


def run_program(target: Target, args: Sequence[str]) -> Any:
    """Run *target*, and return a function's value; None for a script or a module.

    Exceptions of the program are not caught, nor is SystemExit.

    Raises:
        SpecError: A function does not exist.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # KeyboardInterrupt, as plain Python has it
    target.put_folder_first()
    match target.kind:
        case "script":
            _run_script(target.name, args)
        case "module":
            _run_module(target.name, args)
        case _:
            return _call(target, args)
    return None


def _run_script(path: str, args: Sequence[str]) -> None:
    """Run a script as `python PATH ARGS` does. Its __main__ is kept afterwards, since pickling and atexit need it."""
    main = ModuleType("__main__")
    file = str(Path(path).absolute())
    main.__file__ = file
    loader = SourceFileLoader("__main__", file)
    main.__loader__ = loader
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    main.__dict__["__cached__"] = None
    sys.modules["__main__"] = main
    sys.argv[:] = [path, *args]
    exec(compile(loader.get_data(file), file, "exec", dont_inherit=True), main.__dict__)  # noqa: S102  (that is the task)


def _run_module(name: str, args: Sequence[str]) -> None:
    """Run a module, or a package's __main__, as `python -m NAME ARGS` does. Its __main__ is kept, as a script's is."""
    import runpy

    sys.argv[:] = ["-m", *args]
    _, spec, code = runpy._get_module_details(name)  # type: ignore[attr-defined]  # noqa: SLF001  (run_module's own step)
    main = ModuleType("__main__")
    main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, spec.parent
    main.__dict__.update(__file__=spec.origin, __cached__=spec.cached, __builtins__=sys.modules["builtins"])
    sys.modules["__main__"] = main
    sys.argv[0] = spec.origin
    exec(code, main.__dict__)  # noqa: S102  (that is the task)


def _call(target: Target, args: Sequence[str]) -> Any:
    module, _, path = target.name.rpartition(":")
    function: Any = _load_main(target, module) if target.file or target.source else _load_module(module)
    for part in path.split("."):
        if not hasattr(function, part):
            raise SpecError(f"{target.name}: {module} has no {path}")
        function = getattr(function, part)
    if not callable(function):
        raise SpecError(f"{target.name}: {path} is not a function, but {function!r}")
    positional, named = read_arguments(args)
    return function(*unpack(positional, None), **unpack(named, None))


def _load_module(name: str) -> ModuleType:
    with _loading(name):
        return importlib.import_module(name)


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Refuse a launch at the top level of what is loaded: every rank would start the job again."""
    main = sys.modules["__main__"].__dict__
    main[LOADING] = name
    try:
        yield
    finally:
        del main[LOADING]


def _load_main(target: Target, file: str) -> ModuleType:
    """Return the module of a file or of a notebook's cells; code under `__name__ == "__main__"` does not run.

    It has the name that it has in processes of `multiprocessing`.
    """
    main = ModuleType("__mp_main__")
    if target.file:
        main.__file__ = file = str(target.file.absolute())
    source = target.file.read_bytes() if target.file else target.source.encode()
    linecache.cache[file] = (len(source), None, source.decode(errors="replace").splitlines(keepends=True), file)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    sys.argv[:] = [file]
    with _loading(file):
        exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)  # noqa: S102  (that is the task)
    return main


def keep_value(value: Any, name: str, folder: Path) -> JsonValue:
    """Return a function's value as JSON, with its arrays in files of *folder*.

    Raises:
        SpecError: It is not JSON and arrays.
        OutputError: An array cannot be written.
    """
    try:
        kept: JsonValue = pack(value, into_files(folder, "value"))
        json.dumps(kept, allow_nan=False)
    except OSError as error:
        raise OutputError(
            f"{error.filename}: {name} returned an array that cannot be written: {error.strerror}"
        ) from None
    except (TypeError, ValueError, RecursionError, RuntimeError) as error:  # RuntimeError: torch's, of meta tensors
        raise SpecError(f"{name} returned a value that cannot be sent ({error}): {SENDABLE}") from None
    return kept


def check_value(value: object, name: str) -> None:
    """Raise an error if the value of a function or a model cannot be sent back.

    Raises:
        SpecError: The value cannot be written as JSON (nor can NaN), or it is too large.
    """
    try:
        size = len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{name} returned a value that cannot be written as JSON ({error}): expected finite numbers, text, lists "
            "and dicts"
        ) from None
    if size > _LARGEST_VALUE:
        raise SpecError(
            f"{name} returned {size / 1e6:.0f} MB: at most {_LARGEST_VALUE / 1e6:.0f} MB come back; write a file"
        )


def read_arguments(args: Sequence[str]) -> tuple[list[JsonValue], dict[str, JsonValue]]:
    """Return a function's arguments by position and by name; a word that is not JSON is text.

    Args:
        args: JSON, or NAME=JSON.
    """
    positional: list[JsonValue] = []
    named: dict[str, JsonValue] = {}
    for text in args:
        name, equals, value = text.partition("=")
        if equals and name.isidentifier():
            named[name] = _json(value)
        else:
            positional.append(_json(text))
    return positional, named


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def exit_code(exit_: SystemExit) -> int:
    """Return the exit code of a process that raises *exit_*."""
    if not isinstance(exit_.code, int | None):
        return 1
    code = exit_.code or 0
    return code & 0xFF if -_LONG <= code < _LONG else 255  # as Python, which finds -1 in place of what C cannot hold


def leave_out_launcher(error: BaseException) -> None:
    """Let the traceback of *error* begin with the program's first line, as in plain Python.

    The traceback of a program that could not be read or was not found has no such line.
    """
    launcher = {__file__, str(Path(__file__).with_name("work.py")), importlib.__file__}
    frame, began = error.__traceback__, False
    while frame:
        name = frame.tb_frame.f_code.co_filename
        if name not in launcher and not name.startswith("<frozen"):
            error.__traceback__ = frame
            _leave_out_hidden(frame)
            return
        began |= name == __file__
        frame = frame.tb_next
    if began:
        error.__traceback__ = error.__cause__ = None


def _leave_out_hidden(frame: TracebackType) -> None:
    """Leave out the frames behind *frame* that are hidden in pytest's way: a backend's wrappers of its framework."""
    while frame.tb_next:
        if "__tracebackhide__" in frame.tb_next.tb_frame.f_locals:
            frame.tb_next = frame.tb_next.tb_next
        else:
            frame = frame.tb_next


def end_fork(error: BaseException | None) -> NoReturn:
    """End a process that the program has forked, where it comes out of the program, as Python ends it.

    It is no rank; otherwise it would go on as the rank: report the rank's end, and wait for the other ranks.

    Args:
        error: The exception with which the program was left; None if it returned.
    """
    code = int(error is not None)
    with suppress(BaseException):  # of a hook of the program's, or of an output that it has closed
        if isinstance(error, SystemExit):
            code = exit_code(error)
            if not isinstance(error.code, int | None):
                print(error.code, file=sys.stderr)  # noqa: T201  (as Python does)
        elif error:
            leave_out_launcher(error)
            sys.excepthook(type(error), error, error.__traceback__)
    if error:
        traceback.clear_frames(error.__traceback__)  # their files are closed
    end_alone(code)
    ctypes.pythonapi.Py_Exit(code)
    os._exit(code)  # never reached


def around_import(hooks: Mapping[str, Sequence[Hook]]) -> None:
    """Call each hook right after its module's import, or now if the module has been imported already."""
    sys.meta_path.insert(0, AroundImport({name: each for name, each in hooks.items() if name not in sys.modules}))
    for module, hook in [(sys.modules[name], hook) for name in hooks if name in sys.modules for hook in hooks[name]]:
        hook(module)


class AroundImport(MetaPathFinder):
    """Calls the hooks when the program imports a framework, at any time.

    Args:
        hooks: The functions to call right after a module's import, in order, by the module's name.
    """

    def __init__(self, hooks: Mapping[str, Sequence[Hook]]) -> None:
        self.hooks = dict(hooks)

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.hooks:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec and spec.loader:
            self._hook(fullname, spec.loader)
        return spec

    def _hook(self, name: str, loader: Any) -> None:
        """Let *loader* call the hooks when it has executed the module; a search for the module alone calls none."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = execute
            with uncollected():
                execute(module)
            for hook in self.hooks.pop(name, ()):
                hook(module)

        loader.exec_module = exec_module
