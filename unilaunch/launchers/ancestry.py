"""The processes above this one, nearest first: they decide which of several launchers is the innermost."""

import os
from collections.abc import Iterator
from pathlib import Path

from unilaunch.record import Record


class Ancestor(Record):
    """A process above this one.

    Attributes:
        names: Its possible names: the file name of its program, and its process name of at most 15 characters.
        scripts: The scripts that a Python process may run: the first words of its command line, without folders.
        pid: Its process number.
        program: Its program; None if it is another user's (slurmstepd is root's).
    """

    names: tuple[str, ...]
    scripts: tuple[str, ...] = ()
    pid: int = 0
    program: Path | None = None


class Daemon(Record):
    """A launcher's process.

    Attributes:
        pid: Its process number.
        program: Its program, as an absolute path.
        libraries: File names of its MPI library.
    """

    pid: int
    program: Path
    libraries: tuple[str, ...]

    def find_library(self) -> Path | None:
        """Return the MPI library of the same installation; None if it is unknown."""
        prefix = self.program.parent.parent
        folders = [prefix / "lib", prefix / "lib64", *sorted(prefix.glob("lib/*-linux-gnu"))]
        places = (folder / name for folder in folders for name in self.libraries)
        return next((place for place in places if place.exists()), None)


def ancestors() -> Iterator[Ancestor]:
    """Give the processes above this one, nearest first; fewer where /proc does not show them."""
    process = os.getppid()
    while process:  # in a container the launcher may be process 1, whose parent is 0
        folder = Path(f"/proc/{process}")
        try:
            name, fields = stat_of(process)
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            return
        program = read_program(folder)
        file = program.name.removesuffix(" (deleted)") if program else ""
        scripts = read_scripts(words) if file.startswith("python") else ()
        yield Ancestor((file, name), scripts, process, program)
        process = int(fields[1])


def stat_of(process: int) -> tuple[str, list[str]]:
    """Return the name and the other fields, from the state on, of proc(5)'s `stat` of a process."""
    return read_stat(Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace"))


def read_stat(stat: str) -> tuple[str, list[str]]:
    """Return the same from the text; the name may hold spaces and parentheses."""
    head, _, tail = stat.rpartition(")")
    return head.partition("(")[2], tail.split()


def read_program(folder: Path) -> Path | None:
    """Return the program of the process of a folder in /proc; None if it is another user's."""
    try:
        return (folder / "exe").readlink()
    except OSError:
        return None


def read_scripts(words: list[bytes]) -> tuple[str, ...]:
    """Return which scripts a Python process may run: `python .../torchrun`, `python -u -m MODULE`."""
    return tuple(word.decode(errors="replace").rpartition("/")[2] for word in words[1:4])
