"""A page in a real browser, from a server on loopback."""

import contextlib
import functools
import http.server
import threading

from tests.helpers import programs


class _Server(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and notes what is asked for."""

    requests: list[str]

    def log_message(self, format, *arguments):
        self.requests.append(self.path)


@contextlib.contextmanager
def served(folder):
    """Serve a folder; yield (folder, address, requests so far)."""
    handler = type("Handler", (_Server,), {"requests": []})
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=folder)
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}", handler.requests
        server.shutdown()


def look(browser, profile, address, *options):
    """Run the browser over a page; return its DOM and what came on its console."""
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    words += ["--disable-background-networking", "--enable-logging=stderr"]
    words += ["--virtual-time-budget=5000", f"--user-data-dir={profile}", *options, address]
    done = programs.run(browser, *words, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
