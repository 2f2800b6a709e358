"""Which launchers are among this process's ancestors: what tells the innermost of several."""

import os
from collections.abc import Iterator
from pathlib import Path

#: The name of the detector's module, by the name of a launcher's program. Open MPI's prted is also bare PMIx' daemon.
PROGRAMS = {
    **dict.fromkeys(("mpirun", "orterun", "orted", "prterun", "prted"), "openmpi"),
    **dict.fromkeys(("mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_proxy"), "hydra"),
    **dict.fromkeys(("mpirun_rsh", "mpispawn"), "mvapich2"),
    **dict.fromkeys(("slurmstepd", "srun"), "slurm"),
    **dict.fromkeys(("flux-shell",), "flux"),
    **dict.fromkeys(("palsd", "palscmd"), "pals"),
}
#: The same by a word of a Python launcher's command line.
SCRIPTS = {"torchrun": "torchrun", "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
           "msrun": "msrun"}  # fmt: skip


def ancestors() -> list[str]:
    """Return the launchers above this process, nearest first; shorter where /proc does not show them."""
    return list(_launchers(os.getppid()))


def _launchers(process: int) -> Iterator[str]:
    while process > 1:
        folder = Path(f"/proc/{process}")
        try:
            name, parent = _name_and_parent((folder / "stat").read_text(encoding="utf-8", errors="replace"))
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            return
        program = _program(folder)
        script = _script(words) if program.startswith("python") else None
        if launcher := PROGRAMS.get(program) or PROGRAMS.get(name) or script:
            yield launcher
        process = parent


def _name_and_parent(stat: str) -> tuple[str, int]:
    """Return a process's name, at most 15 characters, and its parent; the name may hold spaces and parentheses."""
    head, _, tail = stat.rpartition(")")
    return head.partition("(")[2], int(tail.split()[1])


def _program(folder: Path) -> str:
    """Return the program of a process; "" if it is another user's: slurmstepd is root's, and only its name shows."""
    try:
        return (folder / "exe").readlink().name.removesuffix(" (deleted)")
    except OSError:
        return ""


def _script(words: list[bytes]) -> str | None:
    """Return the launcher that a Python process is, from its first words: `python .../torchrun`, `python -u -m ...`."""
    first = [word.decode(errors="replace").rpartition("/")[2] for word in words[1:4]]
    return next((SCRIPTS[word] for word in first if word in SCRIPTS), None)
