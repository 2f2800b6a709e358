"""The environment variables of unilaunch: those of options, and those that `launch` sets for its agents and ranks.

Kubernetes makes variables for each Service of a namespace, which may have the names of options: a Service "unilaunch"
or "unilaunch-metrics" makes UNILAUNCH_SERVICE_HOST, UNILAUNCH_METRICS_PORT=tcp://10.0.0.1:9464 and more in every pod.
"""

import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from itertools import chain

from unilaunch.errors import SpecError, nearest

#: The name of an option in capitals follows it.
VARIABLE_PREFIX = "UNILAUNCH_"
#: Where the monitor listens: "ADDRESS,ADDRESS PORT SECRET SECONDS".
MONITOR = "_UNILAUNCH_MONITOR"
#: The finished spec; if it is set, a rank reads no option and no UNILAUNCH_ variable.
SPEC = "_UNILAUNCH_SPEC"
#: In a direct start: the agent of a rank, and how many ranks there are: "4711 8".
COPIES = "_UNILAUNCH_COPIES"
#: A secret key that the engine of a job file gives to every rank of the job; it may be the same for each attempt.
KEY = "_UNILAUNCH_KEY"
#: Rows and columns of the terminals on which rank 0's output is shown, as JSON, for its agent.
WINDOWS = "_UNILAUNCH_WINDOWS"
#: For standard output and for standard error; None for one that is no terminal.
Windows = Sequence[Sequence[int] | None]
NO_WINDOWS: Windows = (None, None)
#: The secret that the nodes of a direct start share; a rank does not get it.
SECRET = "UNILAUNCH_SECRET"  # noqa: S105  (the variable's name)
#: How often the job was restarted, and how often it may be; programs read these variables too, as under torchrun.
RESTARTS, MAX_RESTARTS = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"
#: The variable for `--config`, whose file is read before the fields are known.
CONFIG_VARIABLE = VARIABLE_PREFIX + "CONFIG"
#: Fields whose variable has another name than the field.
_FIELDS = {"UNILAUNCH_DATA": "data_dir"}
_NAME = re.compile(r"\w+_SERVICE_(HOST|PORT(_\w+)?)|\w+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+")


def read_variables(
    environ: Mapping[str, str], own: Container[str], known: Callable[[], Iterable[Collection[str]]]
) -> dict[str, str]:
    """Return the fields that UNILAUNCH_ variables set; those that Kubernetes made for a Service set none.

    Args:
        environ: The process's environment.
        own: Names of the fields of the spec at hand.
        known: Returns the names of the fields of every spec; a name in none of them is an error. It is read only for
            a variable that sets none of *own*, and only as far as is needed, since it loads every command.

    Raises:
        SpecError: A UNILAUNCH_ variable names no field.
    """
    variables = {
        _FIELDS.get(name, name.removeprefix(VARIABLE_PREFIX).lower()): name
        for name in environ
        if name.startswith(VARIABLE_PREFIX)
        and name not in {CONFIG_VARIABLE, SECRET}
        and not is_of_a_service(name, environ[name])
    }
    others = {field: name for field, name in variables.items() if field not in own}
    for field, name in others.items():
        if not any(field in names for names in known()):
            raise SpecError(f"{name} names no option{nearest(field, chain.from_iterable(known()))}")
    return {field: environ[name] for field, name in variables.items()}


def variable_of(field: str, environ: Mapping[str, str]) -> str:
    """Return the name of the variable that sets *field* in *environ*."""
    other_names = (variable for variable, named in _FIELDS.items() if named == field and variable in environ)
    return next(other_names, VARIABLE_PREFIX + field.upper())


def is_of_a_service(name: str, value: str) -> bool:
    """Return whether Kubernetes has made this variable for a Service."""
    return bool(_NAME.fullmatch(name) or (name.endswith("_PORT") and _ADDRESS.fullmatch(value)))


def describe_services(environ: Mapping[str, str]) -> str:
    """Return a line about the variables of Services that have the names of options; "" if there are none."""
    named = sorted(
        name for name in environ if name.startswith(VARIABLE_PREFIX) and is_of_a_service(name, environ[name])
    )
    if not named:
        return ""
    more = f" and {len(named) - 1} more" if named[1:] else ""
    return f"{named[0]}{more}: left out, since Kubernetes made it for a Service of this name"


def attempt_of(environ: Mapping[str, str]) -> int:
    """Return how often `launch` has started this job before."""
    restarts = environ.get(RESTARTS, "")
    return int(restarts) if MONITOR in environ and restarts.isdecimal() else 0
