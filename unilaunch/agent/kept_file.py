"""The file in which a stream of a rank's output is kept."""

import os
import time
from pathlib import Path

from unilaunch.folder.files import open_file

#: For `open_file`: made if it is not there, and written at its end.
APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_AGAIN = 10.0  # seconds until a file is tried again that could not be written


class KeptFile:
    """A file to which output is appended. If it cannot be written, for instance on a full disk, the rank continues.

    It is tried again later; a line in the file then says how many bytes are lost.

    Attributes:
        path: Its path; None before it is known: until then the output is held in memory.
        fault: Why it could not be written first; "" if it always could.
        arrived: How many bytes of output have arrived, also those that are held or lost.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self.fault = ""
        self.arrived = 0
        self._descriptor = -1
        self._held = b""
        self._lost = 0
        self._due = 0.0

    def open(self, path: Path) -> None:
        """Write the output to *path* from now on, and first the output that has arrived so far."""
        self.path = path
        held, self._held = self._held, b""
        self._write(path, held)

    def write(self, data: bytes) -> None:
        """Append *data*."""
        self.arrived += len(data)
        if self.path is None:
            self._held += data
        elif time.monotonic() < self._due:
            self._lost += len(data)
        else:
            self._write(self.path, data)

    def _write(self, path: Path, data: bytes) -> None:
        note = f"\n[... {self._lost} bytes lost ...]\n".encode() if self._lost else b""
        try:
            if self._descriptor < 0:
                self._descriptor = open_file(path, APPEND)
            while note:
                note = note[os.write(self._descriptor, note) :]
            self._lost = 0
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            self.fault = self.fault or error.strerror or str(error)
            self._lost += len(data)
            self._due = time.monotonic() + _AGAIN

    def size(self) -> int:
        """Return the file's size in bytes."""
        return os.fstat(self._descriptor).st_size if self._descriptor >= 0 else 0

    def close(self) -> None:
        """Close the file; the bytes that are lost are noted in it, if that is possible by now."""
        if self._lost and self.path:
            self._write(self.path, b"")
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
