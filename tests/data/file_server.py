"""A server on loopback that has files and misbehaves as it is told."""

import contextlib
import http.server
import threading
from collections.abc import Iterator


class Server(http.server.HTTPServer):
    """Serves `files`, path -> content.

    `plan` has what becomes of each of the next requests: "serve", "half" of the answer, or a "page"
    in place of it; `requests` has path and range of those that came.
    """

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.plan, self.requests = files, [], []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path, wanted))
        behaviour = self.server.plan.pop(0) if self.server.plan else "serve"
        if self.path not in self.server.files:
            self.send_error(404)
            return
        content = self.server.files[self.path]
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if behaviour == "page":
            content, start = b"<html>Sign in</html>", 0
        if start >= len(content):
            self.send_error(416)
            return
        body = content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if behaviour == "half" else body)

    def log_message(self, *_):
        """Nothing."""


@contextlib.contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Server]:
    """A server as long as the context lasts."""
    with Server(files) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
