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

    mpirun writes a rule of dashes above and below each of its messages; the upper one may stand behind a rank's
    unfinished line. Other messages, and all messages before the end of the job, are shown without a delay.

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
            self._line_begins = data[:begin].endswith(b"\n") if begin else self._line_begins
            end = data.find(b"\n" + _RULE, begin + len(_RULE) - 1)
            if end < 0:
                self.held = data[begin:]
                return shown
            block, data = data[begin : end + 1 + len(_RULE)], data[end + 1 + len(_RULE) :]
            shown += b"" if _WHY.match(block, len(_RULE)) else block
            self._line_begins = True
        if data:
            self._line_begins = data.endswith(b"\n")
        return shown + data

    def _find_rule(self, data: bytes) -> int:
        """Return the position of the first rule, or of a line that may become one; -1 if there is none."""
        for run in re.finditer(rb"(?<!-)-", data):
            at, after = run.start(), run.start() + len(_RULE)
            begins_line = data[at - 1 : at] == b"\n" if at else self._line_begins
            if _RULE.startswith(data[at:after]) and (begins_line or _may_be_why(data[after:])):
                return at
        return -1


def _may_be_why(text: bytes) -> bool:
    """Return whether *text*, which follows a rule, is a message about the end of a job, or may become one."""
    return bool(_WHY.match(text)) or b"\n" not in text.lstrip()
