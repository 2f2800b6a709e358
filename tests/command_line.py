"""The words of a command line, as `launch` takes them."""

import shlex
from typing import Any

from unilaunch.spec.options import parse


def launch_options(words: str) -> dict[str, Any]:
    """Return the options of `launch` by field, without those that say what becomes of the plan."""
    given: dict[str, Any] = parse(["launch", *shlex.split(words)])
    return {field: value for field, value in given.items() if field not in {"dry_run", "json", "emit"}}
