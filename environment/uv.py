"""Runs uv with pip's settings: python environment/uv.py ARGUMENTS.

uv reads UV_... and uv.toml only. A user who reaches packages through a mirror, a proxy or a folder
has told pip so, by PIP_... or pip.conf. What uv itself was told comes first. Every Python from 3.8
on runs this.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOCK = Path(__file__).resolve().parent / "requirements-dev.lock"
BUNDLES = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"]
INDEXES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
}
OTHERS = {
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "keyring-provider": "UV_KEYRING_PROVIDER",
    "no-cache-dir": "UV_NO_CACHE",
    "proxy": "ALL_PROXY",
    "retries": "UV_HTTP_RETRIES",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "trusted-host": "UV_INSECURE_HOST",
}


def pip_settings(listed: str) -> dict:
    """The settings in what `pip config list` writes, by their names in pip.conf."""
    found = {}
    for scope in ("global", "install", ":env:"):  # the later one wins
        for name, value in re.findall(rf"^{scope}\.([a-z-]+)=(.+)$", listed, re.MULTILINE):
            found[name] = ast.literal_eval(value)
    off = ("", "0", "false", "no", "off")
    return {
        name: value
        for name, value in found.items()
        if value and not (name.startswith("no-") and value.lower() in off)
    }


def has_indexes(environment: Mapping[str, str]) -> bool:
    """Whether uv was told itself where packages are."""
    names = [*INDEXES.values(), "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_NO_INDEX", "UV_OFFLINE"]
    if any(map(environment.get, names)):
        return True
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/")) / ".config"
    files = [Path(home, "uv/uv.toml"), Path("/etc/xdg/uv/uv.toml"), Path("/etc/uv/uv.toml")]
    if "UV_CONFIG_FILE" in environment:
        files = [Path(environment["UV_CONFIG_FILE"])]
    line = re.compile(r"^[\s\[]*((extra-|no-)?index(-url)?|find-links)\b", re.MULTILINE)
    return any(line.search(file.read_text()) for file in files if file.is_file())


def readable(links: str) -> list:
    """Those of pip's find-links that uv reads: addresses, and folders; it fails at any other.

    pip warns of a folder that is not there and goes on; so does this.
    """
    kept = []
    for link in links.split():
        place = urlsplit(link)
        path = Path(unquote(place.path) if place.scheme else link)
        if link.startswith("~/"):
            path = path.expanduser()
        if place.scheme not in ("", "file") or path.is_dir():
            kept.append(link if place.scheme else str(path))
        else:
            print(f"setup: find-links {link} is left out: it is not a folder", file=sys.stderr)
    return kept


def as_uv(pip: dict, environment: Mapping[str, str], arguments: list) -> tuple:
    """The environment and the arguments with which uv does what pip was told."""
    named = {variable: pip[name] for name, variable in OTHERS.items() if name in pip}
    if "UV_HTTP_TIMEOUT" in named:  # pip takes fractions of a second
        named["UV_HTTP_TIMEOUT"] = named["UV_HTTP_TIMEOUT"].partition(".")[0]
    named.setdefault("SSL_CERT_FILE", environment.get("REQUESTS_CA_BUNDLE", ""))
    if any(Path(bundle).is_file() for bundle in BUNDLES):
        named["UV_SYSTEM_CERTS"] = "true"  # as pip does; a company's own certificate is there
    if not has_indexes(environment):
        # uv separates these by spaces, find-links alone by commas.
        for name in INDEXES.keys() & pip.keys():
            named[INDEXES[name]] = " ".join(pip[name].split())
        named["UV_FIND_LINKS"] = ",".join(readable(pip.get("find-links", "")))
        # As with pip, a file comes from whichever index has it; its hash says which one is right.
        named["UV_INDEX_STRATEGY"] = "unsafe-best-match"
        if "no-index" in pip and arguments[:1] == ["pip"]:
            arguments = [*arguments[:2], "--no-index", *arguments[2:]]
    return {**{name: value for name, value in named.items() if value}, **environment}, arguments


def find_uv() -> str:
    """Installs the locked uv in this environment; returns it, else the PATH's, else nothing."""
    own = Path(sys.executable).with_name("uv")
    if not own.is_file():
        pinned = re.search(r"^uv==(?:.*\\\n)*.*\n", LOCK.read_text(), re.MULTILINE)
        assert pinned, LOCK
        with tempfile.TemporaryDirectory() as folder:
            lock = Path(folder, "uv.lock")
            lock.write_text(pinned[0])
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", str(lock)])
    return str(own) if own.is_file() else shutil.which("uv") or ""


def main() -> None:
    """Becomes uv."""
    uv = find_uv()
    if not uv:
        sys.exit("setup: pip cannot install uv (above), and there is none on the PATH")
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    environment, arguments = as_uv(pip_settings(listed), os.environ, sys.argv[1:])
    os.execve(uv, [uv, *arguments], environment)


if __name__ == "__main__":
    main()
