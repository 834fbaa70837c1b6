"""A server on loopback that has files and misbehaves as it is told."""

import contextlib
import http.server
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves files; the server's `plan` has one misbehaviour for each of the next requests."""

    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.requests.append((self.path, wanted))
        behaviour = server.plan.pop(0) if server.plan else "serve"
        content, start = server.files.get(self.path), 0
        if content is None:
            self.send_error(404)
            return
        if behaviour == "page":
            content = b"<html>Sign in</html>"
        elif wanted:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
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

    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def serving(**files):
    """A server of `files` by path; `plan` has what it does next, else it serves.

    `requests` has path and range of what it was asked.
    """
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.plan, server.requests = files, [], []
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
