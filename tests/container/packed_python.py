"""An interpreter of this machine as an archive that uv fetches in place of its own downloads."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

ARCHIVE, LIST = "python.tar.gz", "downloads.json"


def pack(prefix: Path, folder: Path, address: str) -> None:
    """Writes the archive, and the list that UV_PYTHON_DOWNLOADS_JSON_URL names.

    Args:
      prefix: of a Python that pyenv built, such as ~/.pyenv/versions/3.13.0.
      folder: for both files, which the address serves.
    """
    major, minor, patch = map(int, prefix.name.split("."))
    program = f"python{major}.{minor}"

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        left_out = {"site-packages", "test", "__pycache__"} & set(Path(member.name).parts)
        return None if left_out or member.name.endswith(".a") else member

    # It looks for its library where it was built: from now on beside itself.
    built, beside = f"{prefix}/lib\0".encode(), b"$ORIGIN/../lib\0"
    binary = (prefix / "bin" / program).read_bytes()
    binary = binary.replace(built, beside.ljust(len(built), b"\0"))
    with tarfile.open(folder / ARCHIVE, "w:gz", compresslevel=1) as archive:
        for name in ("lib", "include"):
            archive.add(prefix / name, f"python/{name}", filter=kept)
        member = tarfile.TarInfo(f"python/bin/{program}")
        member.size, member.mode = len(binary), 0o755
        archive.addfile(member, io.BytesIO(binary))
    download = {
        "name": "cpython", "arch": {"family": "x86_64", "variant": None}, "os": "linux",
        "libc": "gnu", "major": major, "minor": minor, "patch": patch, "prerelease": "",
        "url": f"{address}/{ARCHIVE}", "variant": None, "build": "20240101",
        "sha256": hashlib.sha256((folder / ARCHIVE).read_bytes()).hexdigest(),
    }  # fmt: skip
    listed = {f"cpython-{prefix.name}-linux-x86_64-gnu": download}
    (folder / LIST).write_text(json.dumps(listed))
