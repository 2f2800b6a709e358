"""What `launch` tells its agents and ranks in their environment."""

from collections.abc import Mapping

#: Where the monitor listens: "ADDRESS,ADDRESS PORT SECRET SECONDS".
MONITOR = "_UNILAUNCH_MONITOR"
#: The finished spec; a rank that finds it reads no option and no UNILAUNCH_ variable.
SPEC = "_UNILAUNCH_SPEC"
#: A key, known to nobody else, that the engine of a job file gives to every rank; it need not be new for each start.
KEY = "_UNILAUNCH_KEY"
#: How often the job was started again, and how often it may be; programs look there too, as under torchrun.
RESTARTS, MAX_RESTARTS = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"


def attempt_of(environ: Mapping[str, str]) -> int:
    """Return how often `launch` has started this job before."""
    told = environ.get(RESTARTS, "")
    return int(told) if MONITOR in environ and told.isdecimal() else 0


def may_start_again(environ: Mapping[str, str]) -> bool:
    """Return whether `launch` would start this job once more."""
    allowed = environ.get(MAX_RESTARTS, "")
    return MONITOR in environ and allowed.isdecimal() and attempt_of(environ) < int(allowed)
