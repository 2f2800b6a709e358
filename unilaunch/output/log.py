"""The log: loguru, one line for each record in one write, `host:rank` in front.

loguru is imported with the first line that is written. Until its framework is imported a rank has seldom anything to
say, and afterwards most of what loguru imports is there already: that is a fifth of a rank's start-up.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from unilaunch.output.files import open_file

if TYPE_CHECKING:
    from loguru import Logger

LINE = "{time:HH:mm:ss.SSS} {extra[rank]} {level: <7} {message}"


@dataclass(frozen=True)
class Log:
    """Where one process's records go.

    Rank 0's lines reach the console through its standard error. The other ranks' go to their own log file, and to the
    console from WARNING up: the same progress from eight ranks helps nobody.

    Attributes:
        level: Least level that is kept.
        line: loguru's format of a line.
        name: What stands in front of a line: "node0:3".
        file: This rank's log file, for a rank whose standard error nobody follows; None for rank 0 and for commands.
    """

    level: str = "INFO"
    line: str = "{message}"
    name: str = ""
    file: Path | None = None

    @cached_property
    def logger(self) -> "Logger":
        """Loguru's logger, set up."""
        from loguru import logger

        logger.remove()
        logger.configure(extra={"rank": self.name})
        if self.file is None:
            logger.add(sys.stderr, level=self.level, format=self.line, backtrace=False, diagnose=False)
            return logger
        warning = logger.level("WARNING").no
        shown = max(warning, logger.level(self.level).no)
        logger.add(sys.stderr, level=shown, format=self.line, backtrace=False, diagnose=False)
        logger.add(
            _writer(self.file), level=self.level, format=self.line, backtrace=False, diagnose=False,
            filter=lambda record: record["level"].no < warning,
        )  # fmt: skip
        return logger

    def say(self, message: str) -> None:
        """Log *message* at level INFO."""
        self.logger.info(message)


def _writer(path: Path) -> Callable[[str], None]:
    """Return what appends a line to a file, and does without one that finds no room."""
    descriptor = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(line: str) -> None:
        with suppress(OSError):
            os.write(descriptor, line.encode(errors="backslashreplace"))

    return write


def rank_log(level: str, host: str, rank: int, file: Path) -> Log:
    """Return the log of one rank.

    Args:
        level: Least level that is kept.
        host: This host's name.
        rank: This rank.
        file: The rank's own log file.
    """
    return Log(level, LINE, f"{host}:{rank}", None if rank == 0 else file)
