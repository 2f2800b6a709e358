"""The environment variables of unilaunch: those of options, and those that `launch` sets for its agents and ranks."""

from collections.abc import Mapping

#: The name of an option in capitals follows it.
VARIABLE_PREFIX = "UNILAUNCH_"
#: Where the monitor listens: "ADDRESS,ADDRESS PORT SECRET SECONDS".
MONITOR = "_UNILAUNCH_MONITOR"
#: The finished spec; if it is set, a rank reads no option and no UNILAUNCH_ variable.
SPEC = "_UNILAUNCH_SPEC"
#: A secret key that the engine of a job file gives to every rank of the job; it may be the same for each attempt.
KEY = "_UNILAUNCH_KEY"
#: The secret that the nodes of a direct start share; a rank does not get it.
SECRET = "UNILAUNCH_SECRET"  # noqa: S105  (the variable's name)
#: How often the job was restarted, and how often it may be; programs read these variables too, as under torchrun.
RESTARTS, MAX_RESTARTS = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"


def attempt_of(environ: Mapping[str, str]) -> int:
    """Return how often `launch` has started this job before."""
    told = environ.get(RESTARTS, "")
    return int(told) if MONITOR in environ and told.isdecimal() else 0


def may_start_again(environ: Mapping[str, str]) -> bool:
    """Return whether `launch` would start this job again."""
    allowed = environ.get(MAX_RESTARTS, "")
    return MONITOR in environ and allowed.isdecimal() and attempt_of(environ) < int(allowed)
