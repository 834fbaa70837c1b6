"""A page in a real browser, from a server on loopback."""

import contextlib
import functools
import http.server
import re
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


def measured(browser, site, profile, name: str, frame: str, width: int, *options):
    """Look at a page in a frame of some width, which writes its title; return that and the console.

    Nothing else may be asked for.
    """
    folder, address, requests = site
    (folder / f"frame_{width}.html").write_text(frame.replace("WIDTH", str(width)))
    requests.clear()
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    words += ["--disable-background-networking", "--enable-logging=stderr"]
    words += ["--virtual-time-budget=5000", f"--user-data-dir={profile}", "--dump-dom"]
    words += ["--window-size=1300,9000", *options, f"{address}/frame_{width}.html"]
    done = programs.run(browser, *words, timeout=120, check=True)
    assert set(requests) == {f"/frame_{width}.html", f"/{name}.html"}
    title = re.search(r"<title>(.*)</title>", done.stdout)
    assert title, done.stdout[:2000]
    return title[1], [line for line in done.stderr.splitlines() if "CONSOLE" in line]
