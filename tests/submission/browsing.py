"""A page in a real browser, from a server on loopback.

Debian: apt-get install chromium. In CI it must be there; elsewhere the tests skip without it.
"""

import contextlib
import functools
import http.server
import shutil
import subprocess
import threading

import pytest

from tests.conftest import lacking

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser():
    """The path of a Chromium."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        lacking("no Chromium here: apt-get install chromium")
    return found


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
    done = subprocess.run(
        [
            browser,
            *["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"],
            *["--disable-background-networking", "--enable-logging=stderr"],
            *["--virtual-time-budget=5000", f"--user-data-dir={profile}", *options, address],
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
