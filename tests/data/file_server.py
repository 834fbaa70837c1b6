"""A server on loopback that has files and misbehaves as it is told."""

import contextlib
import http.server
import re
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves files; the server's `plan` has one misbehaviour for each of the next requests."""

    def do_GET(self):
        server = self.server
        server.ranges.append(self.headers.get("Range"))
        server.requests.append((self.path, self.headers.get("User-Agent")))
        behaviour = server.plan.pop(0) if server.plan else server.always
        content = server.files.get(self.path)
        if behaviour.startswith("status "):
            code, _, words = behaviour.removeprefix("status ").partition(" ")
            self.send_error(int(code), words or None)
        elif behaviour.startswith("raw "):
            self.wfile.write(behaviour.removeprefix("raw ").encode())
            self.close_connection = True
        elif behaviour == "endless":
            self._send_without_end()
        elif content is None:
            self.send_error(404)
        elif behaviour == "drop":
            self.connection.close()
        else:
            self._serve(content, behaviour)

    def _send_without_end(self):
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):  # the client goes
            for _ in range(1000):
                self.wfile.write(bytes(1 << 16))
                self.server.sent_bytes += 1 << 16

    def _serve(self, content, behaviour):
        start = 0
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if found and behaviour != "ignore range":
            start = int(found[1])
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206)
        else:
            self.send_response(200)
        body = content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if behaviour == "wrong bytes":
            body = b"x" * len(body)
        if behaviour == "half":
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def serving(**files):
    """A server; `files` by path, what it does next in `plan` and then `always`.

    `requests` has path and user agent of what it was asked, `ranges` the ranges.
    """
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.plan, server.ranges = files, [], []
    server.always, server.requests, server.sent_bytes = "serve", [], 0
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
