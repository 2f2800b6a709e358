"""A process that the program has forked is no rank: where it comes out of the program, it ends as Python ends it."""

import os
import sys
from contextlib import suppress
from typing import NoReturn

from unilaunch.rank.interpreter import flush_files, run_exit_functions
from unilaunch.rank.program import exit_code, leave_out_launcher


def end_fork(error: BaseException | None) -> NoReturn:
    """End this process; otherwise it would go on as the rank: report the rank's end, and wait for the other ranks.

    Args:
        error: The exception with which the program was left; None if it returned.
    """
    code = int(error is not None)
    with suppress(BaseException):  # of a hook of the program's, or of an output that it has closed
        if isinstance(error, SystemExit):
            code = exit_code(error)
            if not isinstance(error.code, int | None):
                print(error.code, file=sys.stderr)  # noqa: T201  (as Python does)
        elif error:
            leave_out_launcher(error)
            sys.excepthook(type(error), error, error.__traceback__)
    with suppress(BaseException):
        run_exit_functions()
    flush_files()
    os._exit(code)
