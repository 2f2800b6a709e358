"""Which rank failed first, and what followed from it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unilaunch.errors import one_line

#: What a rank says when another one has gone: the frameworks', MPI's and the system's words for it.
_AFTER_ANOTHER = re.compile(
    r"connection (was )?(reset|closed|aborted|refused)|broken pipe|peer(lost)?error|has gone, and the job with it"
    r"|socket (was )?closed|remote process exited|recvvalue failed|sendbytes failed|connectionerror|proc_failed"
    r"|connection lost|unexpected eof|end of file|unexpectedly disconnected",
    re.IGNORECASE,
)

#: With this Open MPI 5 ends a process that finds the socket of another one closed.
_MPI_ERR_UNKNOWN = 14


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a job failed.

    Attributes:
        first: The failure of the rank that failed first, as in its `failure.json`.
        exit_code: The job's.
        consequences: The other ranks' failures, the same ones together: "ranks" and "what".
        stacks: Where the ranks stood when nothing moved any more: "ranks" and "where".
    """

    first: Mapping[str, Any]
    exit_code: int
    consequences: Sequence[Mapping[str, Any]] = ()
    stacks: Sequence[Mapping[str, Any]] = ()

    @property
    def line(self) -> str:
        """The verdict in one line."""
        if self.first["rank"] is None:
            return f"{self.first['message']}: the job is ended (exit code {self.exit_code})"
        if self.first.get("outside"):
            return f"the job was ended from outside, by {self.first['signal'] or 'a signal'}"
        first = " first" if self.consequences else ""
        return f"{name(self.first)} failed{first}: {describe(self.first)}"

    @property
    def everyone(self) -> list[Mapping[str, Any]]:
        """What became of all ranks that failed, the same failures together."""
        return [{"ranks": [int(self.first["rank"])], "what": describe(self.first)}, *self.consequences]

    def as_json(self) -> dict[str, Any]:
        """Return what stands in `report.json`."""
        return {"verdict": self.line, **asdict(self)}


def judge(failures: Sequence[Mapping[str, Any]], exit_code: int | None = None) -> Verdict:
    """Return the verdict over *failures*, which are in the order in which they were told.

    The cause is the first of them that speaks of no other process's end; only if all do, the first.
    """
    first = min(failures, key=_distance)
    others: dict[str, list[int]] = {}
    for failure in failures:
        if failure is not first:
            others.setdefault(describe(failure), []).append(int(failure["rank"]))
    consequences = [{"ranks": sorted(ranks), "what": what} for what, ranks in others.items()]
    return Verdict(first, int(first["exit_code"]) if exit_code is None else exit_code, consequences)


def is_consequence(failure: Mapping[str, Any]) -> bool:
    """Return whether a failure reads like that of a rank which has lost another process."""
    return _distance(failure) > 0


def _distance(failure: Mapping[str, Any]) -> int:
    """Return how far a failure is from a cause: 0 is one, 1 has lost its launcher, 2 another rank, 3 was just ended."""
    if failure.get("outside"):
        return 3
    if failure["error"] == "Ended":
        return 1 if "launcher" in failure["message"] else 2
    if failure["error"] == "Exit" and failure["exit_code"] == _MPI_ERR_UNKNOWN:
        return 2
    return 2 if _AFTER_ANOTHER.search(f"{failure['error']}: {failure['message']}") else 0


def name(failure: Mapping[str, Any]) -> str:
    """Return "rank 2 on node1 (cpu)"."""
    device = failure.get("device") or "?"
    return f"rank {failure['rank']} on {failure['host']}" + (f" ({device})" if device != "?" else "")


def describe(failure: Mapping[str, Any]) -> str:
    """Return what happened to a rank, in one line."""
    return f"{_what(failure)}{_when(failure)}"


def _what(failure: Mapping[str, Any]) -> str:
    code = failure["exit_code"]
    message = str(failure["message"]).strip().splitlines() or [""]
    if failure.get("signal"):
        return f"killed by {failure['signal']} (exit code {code})"
    if failure["error"] in {"Exit", "Lost", "Ended"}:
        return message[0]
    return f"{failure['error']}: {message[0]} (exit code {code})"


def _when(failure: Mapping[str, Any]) -> str:
    progress = failure.get("progress") or {}
    if "epoch" in progress:
        return f", in epoch {progress['epoch']}" + (f" of {progress['epochs']}" if "epochs" in progress else "")
    return f", in phase {failure['phase']!r}" if failure.get("phase") else ""


def show(verdict: Verdict, *, traceback: bool) -> str:
    """Return the report that the user reads, in whole lines.

    Args:
        verdict: What to report.
        traceback: Also the first rank's traceback: its output has not been shown.
    """
    first = verdict.first
    if first.get("outside") and first["signal"] == "SIGINT":
        return "unilaunch: interrupted\n"
    lines = ["".join(first.get("traceback") or []).rstrip()] if traceback and first.get("traceback") else []
    lines.append(f"unilaunch: {verdict.line}")
    lines += [f"unilaunch:   {evidence}" for evidence in first.get("evidence") or []]
    if first.get("log"):
        lines.append(f"unilaunch:   its log is {first['log']} on {first['host']}")
    if traceback and not first.get("traceback"):
        lines += [f"unilaunch:   | {line}" for line in first.get("last_lines") or []]
    for group in verdict.stacks:
        lines.append(f"unilaunch:   {ranks(group['ranks'])}: {group['where']}")
    for group in verdict.consequences:
        lines.append(f"unilaunch:   after it {ranks(group['ranks'])}: {group['what']}")
    # What other processes say can hold anything; only the lines of a traceback are several.
    return "".join(f"{one_line(line)}\n" for text in lines for line in text.split("\n"))


def ranks(numbers: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 0-2, 5"."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    text = ", ".join("-".join(map(str, span)) for span in spans)
    return f"rank{'s' * (len(numbers) > 1)} {text}"
