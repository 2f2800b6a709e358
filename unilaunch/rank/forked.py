"""A process that the program has forked is no rank: where it comes out of the program, it ends as Python ends it."""

import ctypes
import os
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

from unilaunch.rank.interpreter import end_alone
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
    if error:
        traceback.clear_frames(error.__traceback__)  # their files are closed
    end_alone(code)
    ctypes.pythonapi.Py_Exit(code)
    os._exit(code)  # never reached
