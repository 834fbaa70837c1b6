"""Runs uv with pip's settings: python environment/uv.py ARGUMENTS.

uv reads UV_... and uv.toml only. A user who reaches packages through a mirror, a proxy or a folder
has told pip so, by PIP_... or pip.conf. What uv itself was told by UV_... comes first. Every Python
from 3.8 on runs this.
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

LOCK = Path(__file__).resolve().parent / "requirements-dev.lock"
BUNDLES = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"]
# Setting of pip -> what uv reads. uv separates several values by spaces, find-links by commas.
NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "keyring-provider": "UV_KEYRING_PROVIDER",
    "no-cache-dir": "UV_NO_CACHE",
    "proxy": "ALL_PROXY",
    "trusted-host": "UV_INSECURE_HOST",
}


def pip_settings(listed: str) -> dict:
    """The settings in what `pip config list` writes, by their names in pip.conf."""
    found = {}
    for scope in ("global", "install", ":env:"):  # the later one wins
        for name, value in re.findall(rf"^{scope}\.([a-z-]+)=(.+)$", listed, re.MULTILINE):
            found[name] = ast.literal_eval(value)
    off = ("", "0", "false", "no", "off")
    return {n: v for n, v in found.items() if not (v.lower() in off and n.startswith("no-")) and v}


def as_uv(pip: dict, environment: Mapping[str, str], arguments: list) -> tuple:
    """The environment and the arguments with which uv does what pip was told."""
    # As with pip, a file comes from whichever index has it; its hash says which one is right.
    named = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    if "REQUESTS_CA_BUNDLE" in environment:
        named["SSL_CERT_FILE"] = environment["REQUESTS_CA_BUNDLE"]
    if any(Path(bundle).is_file() for bundle in BUNDLES):
        named["UV_SYSTEM_CERTS"] = "true"  # as pip does; a company's own certificate is there
    for name in NAMES.keys() & pip.keys():
        named[NAMES[name]] = ("," if name == "find-links" else " ").join(pip[name].split())
    if "no-index" in pip and arguments[:1] == ["pip"]:
        arguments = [*arguments[:2], "--no-index", *arguments[2:]]
    return {**named, **environment}, arguments


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
