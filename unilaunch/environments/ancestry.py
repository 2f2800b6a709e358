"""Which launchers are among this process's ancestors: what tells the innermost of several."""

import os
from collections.abc import Iterator
from pathlib import Path

#: The name of the detector's module, by the name of a launcher's program.
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
            name = (folder / "exe").readlink().name
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        if launcher := PROGRAMS.get(name) or (_script(words) if name.startswith("python") else None):
            yield launcher
        process = parent


def _script(words: list[bytes]) -> str | None:
    """Return the launcher that a Python process is, from its first words: `python .../torchrun`, `python -m ...`."""
    first = [word.decode(errors="replace").rpartition("/")[2] for word in words[1:3]]
    return next((SCRIPTS[word] for word in first if word in SCRIPTS), None)
