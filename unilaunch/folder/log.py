"""The log: loguru, one line for each record in one write, `host:rank` in front.

loguru is imported when the first line is written. A rank rarely writes a line before it has imported its framework, and
the framework imports most modules that loguru needs. This saves a fifth of a rank's start-up time.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from unilaunch.folder.files import open_file
from unilaunch.record import Record

if TYPE_CHECKING:
    from loguru import Logger

LINE = "{time:HH:mm:ss.SSS} {extra[rank]} {level: <7} {message}"


class Log(Record):
    """The destinations of the log records of one process.

    Rank 0's lines reach the console through its standard error. The lines of other ranks go to their own log files, and
    from WARNING up to the console too: eight ranks would show the same progress.

    Attributes:
        level: Lowest level that is logged.
        line: loguru's format of a line.
        name: The start of each line: "node0:3".
        file: The log file of a rank other than 0; None for rank 0 and for commands.
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
            logger.add(sys.stderr, level=self.level, format=self.line, colorize=False, backtrace=False, diagnose=False)
            return logger
        warning = logger.level("WARNING").no
        shown = max(warning, logger.level(self.level).no)
        logger.add(sys.stderr, level=shown, format=self.line, colorize=False, backtrace=False, diagnose=False)
        logger.add(
            _writer(self.file), level=self.level, format=self.line, colorize=False, backtrace=False, diagnose=False,
            filter=lambda record: record["level"].no < warning,
        )  # fmt: skip
        return logger

    def say(self, message: str) -> None:
        """Log *message* at level INFO."""
        self.logger.info(message)


def _writer(path: Path) -> Callable[[str], None]:
    """Return a function that appends a line to a file, and drops the line if the disk is full."""
    descriptor = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(line: str) -> None:
        with suppress(OSError):
            os.write(descriptor, line.encode(errors="backslashreplace"))

    return write
