"""The log: loguru, one line for each record in one write, `host:rank` in front.

Rank 0's lines reach the console through its standard error. The other ranks' go to their own log file, and to the
console from WARNING up: the same progress from eight ranks helps nobody.
"""

import sys
from pathlib import Path

LINE = "{time:HH:mm:ss.SSS} {extra[rank]} {level: <7} {message}"


def start_plain_log() -> None:
    """Send what a command says to standard error, the message alone."""
    from loguru import logger

    logger.remove()
    logger.add(sys.stderr, level="INFO", format="{message}", backtrace=False, diagnose=False)


def start_log(level: str, host: str, rank: int, file: Path | None) -> None:
    """Send loguru's records where they belong.

    Args:
        level: Least level that is kept.
        host: This host's name.
        rank: This rank.
        file: This rank's log file, for the ranks whose standard error nobody follows; None when it is captured anyway.
    """
    from loguru import logger

    logger.remove()
    logger.configure(extra={"rank": f"{host}:{rank}"})
    if rank == 0 or file is None:
        logger.add(sys.stderr, level=level, format=LINE, backtrace=False, diagnose=False)
        return
    warning = logger.level("WARNING").no
    logger.add(sys.stderr, level=max(warning, logger.level(level).no), format=LINE, backtrace=False, diagnose=False)
    logger.add(file, level=level, format=LINE, backtrace=False, diagnose=False, mode="a", buffering=1,
               filter=lambda record: record["level"].no < warning)  # fmt: skip
