"""The compiled form of a file in C: made at its first use by the compiler that is there, and kept for the user."""

import ctypes
import fcntl
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

_KERNELS = Path(__file__).with_name("kernels.c")
_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")
_SECONDS = 60.0  # that a compiler may take
#: What follows a library in its file: one that a full disk or a crash has cut ends the process when it is loaded.
_END = b"whole"


@cache
def load_library(source: Path = _KERNELS) -> ctypes.CDLL | None:
    """Return a file's functions; None without a compiler or a folder of this user alone."""
    try:
        return ctypes.CDLL(str(_compiled(source, _compiler(), _cache_folder())))
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        warnings.warn(
            f"{source.name} cannot be compiled and kept here, so numpy and SciPy or FBGEMM train, which is slower: "
            f"{error}: install gcc, or let XDG_CACHE_HOME name a folder that only you can write",
            stacklevel=3,
        )
        return None


def _compiler() -> str:
    """Return the path of a C compiler.

    Raises:
        FileNotFoundError: There is none.
    """
    if compiler := next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None):
        return compiler
    raise FileNotFoundError("no cc, gcc or clang in PATH")


def _compiled(source: Path, compiler: str, folder: Path) -> Path:
    """Return the library of this source, compiler, C library and processor; several ranks may make it at once.

    Raises:
        OSError: The library belongs to another user, or cannot be written.
        RuntimeError: The compiler has failed.
        subprocess.TimeoutExpired: It has not ended.
    """
    machine = "\n".join((platform.machine(), _processor(), *platform.libc_ver(), compiler, *_FLAGS)).encode()
    path = folder / f"{source.stem}-{sha256(source.read_bytes() + machine).hexdigest()[:32]}.so"
    if not _is_whole(path):
        with tempfile.TemporaryDirectory(dir=folder) as aside, _alone(folder):
            if not _is_whole(path):
                _compile(compiler, source, Path(aside, path.name)).rename(path)
    _refuse_others(path)
    return path


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let the other ranks wait while one compiles; where files cannot be locked, each compiles."""
    with (folder / "lock").open("w") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(compiler: str, source: Path, path: Path) -> Path:
    line = [compiler, *_FLAGS, str(source), "-o", str(path)]
    done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{compiler}: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
    path.chmod(0o700)
    with path.open("ab") as library:
        library.write(_END)
        library.flush()
        os.fsync(library.fileno())
    return path


def _is_whole(path: Path) -> bool:
    return path.exists() and path.read_bytes().endswith(_END)


def _processor() -> str:
    """Return what names the processor's instructions: /proc/cpuinfo's flags."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return platform.processor()


def _cache_folder() -> Path:
    """Return the folder of compiled libraries in the user's cache folder."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"  # noqa: TID251  (as secret_file.py's folder)
    folder = Path(root, "unilaunch", "kernels")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_others(folder)
    return folder


def _refuse_others(path: Path) -> None:
    """Raise PermissionError if anybody else could have written what stands there."""
    found = path.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or stat.S_ISLNK(found.st_mode):
        raise PermissionError(f"{path}: another user may write it")
