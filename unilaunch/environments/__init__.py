"""Who started me: one module for each launcher, each a pure function of the environment.

A launcher is one module here, one entry in `DETECTORS`, and one captured environment under `tests/`.
"""

from collections.abc import Callable, Mapping

from unilaunch.environments import alone, openmpi
from unilaunch.world import Found

Detector = Callable[[Mapping[str, str]], Found | None]

#: Innermost first: an mpirun inside another launcher's allocation is the one that started this process.
DETECTORS: tuple[Detector, ...] = (openmpi.detect,)


def detect(environ: Mapping[str, str]) -> Found:
    """Return what the innermost launcher says about this process; world size 1 when there is none.

    Raises:
        EnvironmentMismatchError: A launcher's variables are incomplete, or a launcher that cannot be read yet says
            that there is more than one rank.
    """
    for detector in DETECTORS:
        if found := detector(environ):
            return found
    return alone.only_rank(environ)
