"""Decide which rank failed first, and which failures followed from it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from unilaunch.errors import REQUEUE, one_line
from unilaunch.folder.failure import Cause, Failure
from unilaunch.interfaces.step import Step
from unilaunch.record import Record

#: Likelihood that a failure is a consequence: 0 (all others) = possible root cause, 1 = lost its launcher, 2 = lost a
#: peer, 3 = ended from outside.
_DISTANCES = {Cause.LOST_LAUNCHER: 1, Cause.LOST_PEER: 2, Cause.ENDED_FROM_OUTSIDE: 3}
#: A line that says something: MindSpore's messages begin with rows of dashes, and headings "- Kernel select failed:".
_SAYS = re.compile(r"\s*[^-\s].*\w")
_SHOWN = 8  # groups of consequences
_LONGEST = 1000  # characters of a program's message in one line; ours are shown whole, with what to do at the end
#: A message that is a traceback, as of torch.multiprocessing.spawn, ends with what has happened.
_TRACEBACK = "Traceback (most recent call last)"


class Verdict(Record):
    """How a job failed.

    Attributes:
        first: The failure of the rank that failed first, as in its `failure.json`. If several failed in the same way,
            the failure of the lowest of these ranks.
        exit_code: The job's exit code.
        consequences: The other ranks' failures, in groups of equal ones: "ranks" and "what".
        stacks: The places of the ranks of a stalled job, in groups: "ranks" and "where".
        alike: The first rank and the ranks that failed in the same way; empty if no rank failed.
        everywhere: Whether all ranks failed in this way, and there are several ranks.
        left: Ranks whose program had ended well, where the first one to fail has lost a peer: it may be one of them.
    """

    first: Failure
    exit_code: int
    consequences: Sequence[Mapping[str, Any]] = ()
    stacks: Sequence[Mapping[str, Any]] = ()
    alike: Sequence[int] = ()
    everywhere: bool = False
    left: Sequence[int] = ()

    @property
    def line(self) -> str:
        """The verdict in one line."""
        if self.first.rank is None:
            return f"{self.first.message}: the job is ended (exit code {self.exit_code})"
        if self.first.cause is Cause.ENDED_FROM_OUTSIDE:
            if self.exit_code == REQUEUE:  # it says what it has saved
                return self.first.message
            return f"the job was ended from outside, by {self.first.signal or 'a signal'}"
        if self.everywhere:
            number = f" {len(self.alike)}" if len(self.alike) > 1 else ""
            return f"all{number} ranks: {describe(self.first)}"
        first = " first" if self.consequences else ""
        who = ranks(self.alike) if len(self.alike) > 1 else name(self.first)
        return f"{who} failed{first}: {describe(self.first)}"

    @property
    def was_shown(self) -> bool:
        """Whether all ranks refused in the same way, and rank 0 has shown why."""
        return self.first.together and self.first.rank == 0

    def as_json(self) -> dict[str, Any]:
        """Return the content of `report.json`."""
        return {"verdict": self.line, **vars(self), "first": vars(self.first)}


def judge(failures: Sequence[Failure], size: int = 0) -> Verdict:
    """Return the verdict on *failures*, which are in the order in which they became known.

    The root cause is the first of the failures that are least likely a consequence. If another rank has the same
    failure, that is not a consequence.

    Args:
        failures: At least one.
        size: Number of ranks of the job; 0 if it is not known.
    """
    cause = min(failures, key=_distance)
    same, groups = [cause], dict[object, list[Failure]]()
    for failure in failures:
        if failure is not cause and failure.rank is not None:
            is_same = describe(failure) == describe(cause)
            (same if is_same else groups.setdefault(_kind(failure), [])).append(failure)
    others = groups.values()
    consequences = [{"ranks": _ranks_of(group), "what": describe(group[0])} for group in others]
    alike = _ranks_of(same)
    first = min(same, key=lambda failure: failure.rank or 0)
    everywhere = size > 1 and (first.together or len(alike) == size)
    return Verdict(first, first.exit_code, consequences, alike=alike, everywhere=everywhere)


def _kind(failure: Failure) -> object:
    """Return what is equal for failures whose messages differ in numbers only: each rank's peer has its own port."""
    return failure.exit_code, re.sub(r"\d+", "#", _what(failure)), _when(failure)


def _ranks_of(failures: Sequence[Failure]) -> list[int]:
    return sorted(failure.rank for failure in failures if failure.rank is not None)


def is_consequence(failure: Failure) -> bool:
    """Return whether a rank has failed because it lost another process."""
    return _distance(failure) > 0


def _distance(failure: Failure) -> int:
    return _DISTANCES.get(failure.cause, 0)


def name(failure: Failure) -> str:
    """Return "rank 2 on node1 (cpu)"."""
    return f"rank {failure.rank} on {failure.host}" + (f" ({failure.device})" if failure.device != "?" else "")


def describe(failure: Failure) -> str:
    """Return what happened to a rank, in one line."""
    return f"{_what(failure)}{_when(failure)}"


def _what(failure: Failure) -> str:
    lines = failure.message.strip().splitlines() or [""]
    says = [line for line in lines if _SAYS.match(line)] or lines
    message = says[-1 if says[0].startswith(_TRACEBACK) else 0]
    if failure.cause is Cause.REFUSED_INPUT:
        return message
    message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]} ..."
    if failure.signal:
        return f"killed by {failure.signal} (exit code {failure.exit_code})"
    named = ": ".join(filter(None, (failure.error, message)))  # `assert` and MemoryError say nothing more
    return f"{named} (exit code {failure.exit_code})" if failure.error else message


def _when(failure: Failure) -> str:
    if failure.cause is Cause.REFUSED_INPUT:
        return ""
    if step := Step.from_facts(failure.progress):
        return f", in {step.place}"
    return f", in phase {failure.phase!r}" if failure.phase else ""


def show(verdict: Verdict, *, unseen: bool) -> str:
    """Return the report for the user, in whole lines; with the first rank's traceback, unless the rank has shown it.

    Args:
        verdict: What to report.
        unseen: The first rank's output was not shown: the report has its traceback, or else the end of its log.
    """
    first = verdict.first
    if first.cause is Cause.ENDED_FROM_OUTSIDE and first.signal == "SIGINT":
        return "unilaunch: interrupted\n"
    lines = ["".join(first.traceback).rstrip()] if first.traceback and (unseen or not first.shown) else []
    lines.append(f"unilaunch: {verdict.line}")
    lines += [f"unilaunch:   {evidence}" for evidence in first.evidence]
    if first.log and first.cause is not Cause.REFUSED_INPUT:
        whose = f"rank {first.rank}'s" if len(verdict.alike) > 1 else "its"
        lines.append(f"unilaunch:   {whose} log is {first.log} on {first.host}")
    if unseen and not first.traceback:
        lines += [f"unilaunch:   | {line}" for line in first.last_lines]
    for group in verdict.stacks:
        lines.append(f"unilaunch:   {ranks(group['ranks'])}: {group['where']}")
    if verdict.left:
        lines.append(f"unilaunch:   before it the program of {ranks(verdict.left)} had ended (exit code 0)")
    for group in verdict.consequences[:_SHOWN]:
        lines.append(f"unilaunch:   after it {ranks(group['ranks'])}: {group['what']}")
    if more := sum(len(group["ranks"]) for group in verdict.consequences[_SHOWN:]):
        lines.append(f"unilaunch:   after it {more} more ranks: report.json names them")
    # Text from other processes can contain any characters; only a traceback has several lines.
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
