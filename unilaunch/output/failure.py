"""The record of how a rank failed."""

import time
import traceback
from typing import Any

from unilaunch.world import World


def describe_failure(world: World, error: BaseException, exit_code: int) -> dict[str, Any]:
    """Return what `failure.json` says.

    Args:
        world: Who failed.
        error: Why.
        exit_code: What the process exits with.
    """
    return {
        "rank": world.rank,
        "host": world.host,
        "device": world.device,
        "time": time.time(),
        "exit_code": exit_code,
        "error": type(error).__name__,
        "message": str(error),
        "traceback": traceback.format_exception(error),
    }
