"""Who started me: one module for each launcher, each a pure function of the environment.

A launcher is one module here, one entry in `DETECTORS`, and one captured environment under `tests/`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from unilaunch.environments import alone, flux, hydra, msrun, mvapich2, openmpi, pals, pmix, slurm, torchrun
from unilaunch.environments.ancestry import ancestors
from unilaunch.errors import EnvironmentMismatchError
from unilaunch.world import Found

Detector = Callable[[Mapping[str, str]], Found | None]

#: By name, innermost first where nothing else tells: an mpirun inside an allocation is what started this process, and
#: what torchrun left in a shell is not. (Open MPI and Slurm use PMIx too: it counts only where it is all there is, or
#: prterun's.)
DETECTORS: dict[str, Detector] = {
    "openmpi": openmpi.detect,
    "pmix": pmix.detect,
    "mvapich2": mvapich2.detect,
    "pals": pals.detect,
    "flux": flux.detect,
    "hydra": hydra.detect,
    "torchrun": torchrun.detect,
    "msrun": msrun.detect,
    "slurm": slurm.detect,
}


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one detector sees in an environment.

    Attributes:
        name: The detector's name.
        found: What the launcher says; None if its variables make no sense.
        error: Why they do not; "" if they do.
        chosen: This launcher started the process.
        why: Why it was chosen or ignored.
    """

    name: str
    found: Found | None
    error: str = ""
    chosen: bool = False
    why: str = ""


def detect(environ: Mapping[str, str]) -> Found:
    """Return what the innermost launcher says about this process; world size 1 when there is none.

    Raises:
        EnvironmentMismatchError: The launcher's variables are incomplete or make no sense, or a variable says that
            there are more ranks than this one and none can be told.
    """
    for sighting in survey(environ):
        if sighting.chosen:
            if sighting.found is None:
                raise EnvironmentMismatchError(sighting.error)
            return sighting.found
    return alone.only_rank(environ)


def survey(environ: Mapping[str, str], above: Sequence[str] | None = None) -> list[Sighting]:
    """Return what every detector sees, and which one is believed; detectors that see nothing are left out.

    Args:
        environ: The process's environment.
        above: The launchers among the process's ancestors, nearest first; None to look, if there is more than one
            launcher to choose from.
    """
    sightings = [sighting for name in DETECTORS if (sighting := _look(name, environ))]
    alias = {"openmpi": "pmix"} if pmix.is_launcher(environ) else {}
    if not alias:
        sightings = [sighting for sighting in sightings if sighting.name != "pmix"] or sightings  # it is in the others
    if len(sightings) <= 1:
        return [_judge(sighting, sighting.name, "the only launcher") for sighting in sightings]
    seen = {sighting.name for sighting in sightings}
    names = (alias.get(name, name) for name in (ancestors() if above is None else above))
    nearest = next((name for name in names if name in seen), None)
    chosen = nearest or sightings[0].name
    reason = "the nearest of this process's ancestors" if nearest else "the innermost, as launchers are nested"
    return [_judge(sighting, chosen, reason) for sighting in sightings]


def _look(name: str, environ: Mapping[str, str]) -> Sighting | None:
    try:
        found = DETECTORS[name](environ)
    except EnvironmentMismatchError as error:
        return Sighting(name, None, str(error))
    return Sighting(name, found) if found else None


def _judge(sighting: Sighting, chosen: str, reason: str) -> Sighting:
    if sighting.name == chosen:
        return Sighting(sighting.name, sighting.found, sighting.error, chosen=True, why=reason)
    why = f"ignored: {chosen} is {reason}; these variables are around it, or left over"
    return Sighting(sighting.name, sighting.found, sighting.error, why=why)
