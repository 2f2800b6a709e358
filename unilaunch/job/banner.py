"""Recognise mpirun's messages about the end of a job: they often name a rank that is not the cause."""

import re

_RULE = b"-" * 74 + b"\n"
_WHY = re.compile(
    rb"\s*(Primary job +terminated normally, but"
    rb"|\w+ (noticed that (process rank|the job aborted)|detected that one or more processes exited"
    rb"|has exited due to (process rank|a process exiting)))"
)


class BannerFilter:
    """Removes these messages from mpirun's standard error, once the monitor or the user has ended the job.

    mpirun writes a rule of dashes above and below each of its messages. Other messages, and all messages before the end
    of the job, are shown without a delay.

    Attributes:
        active: Whether the job is being ended.
    """

    def __init__(self) -> None:
        self.active = False
        self.held = b""
        self._line_begins = True

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to show now, of *data* and of the bytes that were kept before."""
        data, self.held = self.held + data, b""
        shown = b""
        while self.active and (begin := self._find_rule(data)) >= 0:
            shown += data[:begin]
            end = data.find(b"\n" + _RULE, begin + len(_RULE) - 1)
            if end < 0:
                self.held, self._line_begins = data[begin:], True
                return shown
            block, data = data[begin : end + 1 + len(_RULE)], data[end + 1 + len(_RULE) :]
            shown += b"" if _WHY.match(block, len(_RULE)) else block
            self._line_begins = True
        if data:
            self._line_begins = data.endswith(b"\n")
        return shown + data

    def _find_rule(self, data: bytes) -> int:
        """Return the position of the first rule, or of a line that may become one; -1 if there is none."""
        begins = [0] if self._line_begins else []
        begins += [found.end() for found in re.finditer(rb"\n(?=-)", data)]
        return next((at for at in begins if at < len(data) and _RULE.startswith(data[at : at + len(_RULE)])), -1)
