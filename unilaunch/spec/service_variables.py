"""Variables that Kubernetes makes for each Service of a namespace, which may have the names of options.

A Service "unilaunch" or "unilaunch-metrics" makes UNILAUNCH_SERVICE_HOST, UNILAUNCH_METRICS_PORT=tcp://10.0.0.1:9464
and more in every pod.
"""

import re
from collections.abc import Mapping

from unilaunch.spec.start_variables import VARIABLE_PREFIX

_NAME = re.compile(r"\w+_SERVICE_(HOST|PORT(_\w+)?)|\w+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+")


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
