"""Messages between two processes over a socket: JSON objects, one per line."""

import json
import select
import socket
import time

from mlperf_bert.files import json_text

_SEND_SECONDS = 30.0
# The kernel notices after a minute that the host or the network of the other process is gone.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}


class Channel:
    """One end of a connection."""

    def __init__(self, connection: socket.socket):
        """Takes over the connection."""
        self._connection = connection
        self._received = bytearray()
        connection.settimeout(_SEND_SECONDS)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def send(self, message: dict) -> None:
        """Sends a message.

        Raises:
          OSError: the connection is gone.
        """
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, *, max_bytes: int, deadline: float | None = None) -> dict:
        """The next message; `deadline` is a value of `time.monotonic`, None waits forever.

        Raises:
          ValueError: the message is no JSON object, or longer than `max_bytes`.
          OSError: the connection is closed, or no message came before the deadline.
        """
        piece: bytes | bytearray = self._received
        while b"\n" not in piece:
            if len(self._received) > max_bytes:
                raise ValueError(f"sent more than {max_bytes} bytes in one message")
            piece = self._next_piece(deadline)
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return json_text.parse_object(bytes(line))

    def _next_piece(self, deadline: float | None) -> bytes:
        left_ms = None if deadline is None else 1000 * max(deadline - time.monotonic(), 0)
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        if not poll.poll(left_ms):
            raise TimeoutError("sent nothing in time")
        piece = self._connection.recv(1 << 16)
        if not piece:
            raise ConnectionError("closed the connection")
        return piece

    def close(self) -> None:
        """Closes the connection; the other end notices at once."""
        self._connection.close()
