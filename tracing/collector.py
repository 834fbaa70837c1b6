"""Copies a tracer's lines into a file; a full disk loses lines and never stops the program."""

import fcntl
import os
import select
import threading
from pathlib import Path

_CHUNK_BYTES = 1 << 20
_POLL_MS = 200


class Collector(threading.Thread):
    """Reads a named pipe to its end and writes a file, as long as there is room for it."""

    def __init__(self, pipe: Path, file: Path):
        """Makes the pipe, which the tracer opens for writing."""
        super().__init__(name=f"collector of {file.name}", daemon=True)
        self.num_lost_lines = 0
        self.error: OSError | None = None
        self._file = file
        self._tracer_has_ended = threading.Event()
        os.mkfifo(pipe)
        self._reading_end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        # A tracer that waits for us holds up the program that it traces.
        fcntl.fcntl(self._reading_end, fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)

    def run(self) -> None:
        """Ends with the tracer."""
        chunks = self._chunks()
        try:
            with self._file.open("wb", buffering=0) as file:
                for chunk in chunks:
                    self._write(file, chunk)
        except OSError as error:
            self.error = error
            for chunk in chunks:
                self.num_lost_lines += chunk.count(b"\n")
        finally:
            os.close(self._reading_end)

    def finish(self) -> None:
        """Call it when the tracer has ended: takes what is left in the pipe."""
        self._tracer_has_ended.set()
        self.join()

    def _chunks(self):
        poll = select.poll()
        poll.register(self._reading_end, select.POLLIN)
        while True:
            if poll.poll(_POLL_MS):
                chunk = os.read(self._reading_end, _CHUNK_BYTES)
                if not chunk:
                    return
                yield chunk
            elif self._tracer_has_ended.is_set():
                return  # it never opened the pipe

    def _write(self, file, chunk: bytes) -> None:
        written = 0
        try:
            while written < len(chunk):
                written += file.write(chunk[written:])
        except OSError:
            self.num_lost_lines += chunk.count(b"\n", written)
            raise
