"""This rank's line to the `launch` that started it: who it is when it starts, and how it ended."""

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

#: "ADDRESS,ADDRESS PORT TOKEN"; set by `launch`, in each rank's environment.
VARIABLE = "_UNILAUNCH_REPORT_TO"
_PATIENCE = 3.0  # seconds for each address


class Report:
    """A line to the launching process; without one, and once it is broken, what is said is lost and nothing else."""

    def __init__(self, connection: socket.socket | None) -> None:
        self.connection = connection

    def send(self, **record: Any) -> None:
        """Tell the launching process *record*, which must be JSON."""
        if self.connection:
            with suppress(OSError):
                self.connection.sendall(json.dumps(record).encode() + b"\n")


def open_report(environ: Mapping[str, str]) -> Report:
    """Return the line to the launching process, if there is one."""
    addresses, port, token = [*environ.get(VARIABLE, "").split(), "", "", ""][:3]
    for address in filter(None, addresses.split(",")):
        with suppress(OSError):
            connection = socket.create_connection((address, int(port)), _PATIENCE)
            report = Report(connection)
            report.send(token=token)
            connection.settimeout(None)
            return report
    return Report(None)
