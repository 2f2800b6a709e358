"""The record of how a rank failed."""

import signal
import time
import traceback
from collections.abc import Mapping
from typing import Any


def describe_exception(error: BaseException, exit_code: int) -> dict[str, Any]:
    """Return what the rank itself knows of its failure.

    Args:
        error: Why.
        exit_code: What the process exits with.
    """
    return {
        "time": time.time(),
        "exit_code": exit_code,
        "signal": None,
        "error": type(error).__name__,
        "message": str(error),
        "traceback": [] if isinstance(error, SystemExit) else traceback.format_exception(error),
    }


def describe_exit(returncode: int) -> dict[str, Any]:
    """Return what is known of a rank that did not say why it ended.

    Args:
        returncode: Its exit code; -N if signal N ended it.
    """
    known: dict[str, Any] = {"time": time.time(), "traceback": []}
    if returncode < 0:
        name = signal_name(-returncode)
        return known | {
            "exit_code": 128 - returncode, "signal": name, "error": "Killed", "message": f"killed by {name}"
        }  # fmt: skip
    words = f"ended with exit code {returncode} and no exception (os._exit, or a library's exit)"
    return known | {"exit_code": returncode, "signal": None, "error": "Exit", "message": words}


def signal_name(number: int) -> str:
    """Return "SIGKILL" for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def complete_failure(
    known: Mapping[str, Any], who: Mapping[str, Any], progress: Mapping[str, Any], last_lines: list[str], log: str
) -> dict[str, Any]:
    """Return what `failure.json` says.

    Args:
        known: From `describe_exception` or `describe_exit`.
        who: "rank", "host" and "device".
        progress: What the rank was last doing: "phase" and what a model notes.
        last_lines: The end of its log.
        log: Where its log is.
    """
    facts = {name: value for name, value in progress.items() if name != "phase"}
    return {
        "rank": who.get("rank", -1),
        "host": who.get("host", "?"),
        "device": who.get("device", "?"),
        "phase": progress.get("phase"),
        "progress": facts,
        **known,
        "last_lines": last_lines,
        "log": log,
        "evidence": [],
    }
