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


def as_uv(listed: str, environment: Mapping[str, str], arguments: list) -> tuple:
    """The environment and the arguments with which uv does what `pip config list` writes."""
    # As with pip, a file comes from whichever index has it; its hash says which one is right.
    named = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    if "REQUESTS_CA_BUNDLE" in environment:
        named["SSL_CERT_FILE"] = environment["REQUESTS_CA_BUNDLE"]
    if any(Path(bundle).is_file() for bundle in BUNDLES):
        named["UV_SYSTEM_CERTS"] = "true"  # as pip does; a company's own certificate is there
    pip = {}
    for scope in ("global", "install", ":env:"):  # the later one wins
        pip.update(re.findall(rf"^{scope}\.([a-z-]+)=(.+)$", listed, re.MULTILINE))
    values = {name: ast.literal_eval(value).split() for name, value in pip.items()}
    for name in NAMES.keys() & values.keys():
        if values[name]:
            named[NAMES[name]] = ("," if name == "find-links" else " ").join(values[name])
    is_off = " ".join(values.get("no-index", [])).lower() in ("", "0", "false", "no", "off")
    if not is_off and arguments[:1] == ["pip"]:
        arguments = [*arguments[:2], "--no-index", *arguments[2:]]
    return {**named, **environment}, arguments


def main() -> None:
    """Becomes the locked uv, which is installed here if it is not; else that of the PATH."""
    own, pip = Path(sys.executable).with_name("uv"), [sys.executable, "-m", "pip"]
    if not own.is_file():
        [pinned] = re.findall(r"^uv==(?:.*\\\n)*.*\n", LOCK.read_text(), re.MULTILINE)
        quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "install", *quiet, "-r", "/dev/stdin"], input=pinned, text=True)
    uv = str(own) if own.is_file() else shutil.which("uv")
    if not uv:
        sys.exit("setup: pip cannot install uv (above), and there is none on the PATH")
    done = subprocess.run([*pip, "config", "list"], stdout=subprocess.PIPE, text=True, check=True)
    environment, arguments = as_uv(done.stdout, os.environ, sys.argv[1:])
    os.execve(uv, [uv, *arguments], environment)


if __name__ == "__main__":
    main()
