"""Google Cloud Storage on loopback, for TensorFlow's own client, and for Google's.

TensorFlow's speaks only to storage.googleapis.com and www.googleapis.com over TLS, but takes a
proxy and a certificate authority from its environment, as Google's does. So the rig is a proxy that
ends TLS itself, with a throwaway certificate, and lets gcp-storage-emulator answer.
"""

import datetime
import http.server
import io
import json
import os
import random
import re
import shutil
import ssl
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.handlers import buckets, objects
from gcp_storage_emulator.storage import Storage

from tests.helpers.starts import FORKS
from tests.helpers.waiting import HANGS_AFTER_SECONDS

_END_OF_HEADERS = b"\r\n\r\n"
BUCKET = "bucket"
HOSTS = ("storage.googleapis.com", "www.googleapis.com", "oauth2.googleapis.com")
# What Google's client finds as a user's: it asks the last host for a token.
_CREDENTIALS = {"type": "authorized_user"} | dict.fromkeys(
    ("client_id", "client_secret", "refresh_token"), "of-the-test"
)


class Request(NamedTuple):
    """A request that was answered, or whose connection was cut: status 0.

    Kinds: read, write (the upload of a whole object), other.
    """

    kind: str
    name: str
    status: int


class Store:
    """An object store with one empty bucket at first, as long as the context lasts."""

    def __init__(self):
        self.token = "token-of-the-test"  # the one that is let in
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._storage = _Storage(use_memory_fs=True)
        self.make_bucket(BUCKET)
        self._writable = True
        self._random = random.Random(0)
        self._fault: tuple[float, int] = (0.0, 0)

    def __enter__(self) -> "Store":
        self._folder = tempfile.TemporaryDirectory(prefix="store-")
        certificate = Path(self._folder.name, "certificate.pem")
        _write_certificate(certificate)
        self._server = _Server(self, certificate)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        credentials = Path(self._folder.name, "credentials.json")
        credentials.write_text(json.dumps(_CREDENTIALS))
        host = Path(self._folder.name, "host")
        host.mkdir()
        self.environment = {
            # Where runs that are killed leave their files.
            "TMPDIR": str(host),
            "GOOGLE_APPLICATION_CREDENTIALS": str(credentials),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": self.token,
            "https_proxy": f"http://127.0.0.1:{self._server.server_port}",
            "no_proxy": "localhost,127.0.0.1,::1",  # gRPC, between the processes of a cluster
            "CURL_CA_BUNDLE": str(certificate),  # of TensorFlow's client
            "REQUESTS_CA_BUNDLE": str(certificate),  # of google-cloud-storage
            "NO_GCE_CHECK": "true",
            # TensorFlow reads it when it is imported; for forks, tests.helpers.imported sets it.
            "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "0",
        }
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()

    def make_bucket(self, name: str) -> None:
        """Makes a bucket, unless it is there."""
        assert len(name) > 2  # as the real store asks; and the emulator takes `b` for its interface
        with self._lock:
            if name not in self._storage.buckets:
                buckets.create_bucket(name, self._storage)

    def objects(self, bucket: str = BUCKET) -> dict[str, bytes]:
        """The contents by name; a folder that TensorFlow made is an empty object `name/`."""
        with self._lock:
            names = sorted(self._storage.objects.get(bucket, {}))
            return {name: self._storage.get_file(bucket, name) for name in names}

    def put(self, bucket: str, name: str, content: bytes) -> None:
        resource = objects._make_object_resource(
            f"https://{HOSTS[0]}", bucket, name, "application/octet-stream", str(len(content))
        )
        with self._lock:
            resource = objects._checksums(content, resource)
            self._storage.create_file(bucket, name, content, resource)

    def upload(self, folder: Path, place: str) -> None:
        """Puts the files of a folder, and of those in it, below a place that ends with a slash."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(BUCKET, f"{place}{path.relative_to(folder).as_posix()}", path.read_bytes())

    def download(self, place: str, folder: Path) -> Path:
        """Writes what is below a place into a folder, which holds nothing else then."""
        shutil.rmtree(folder, ignore_errors=True)
        for name, content in self.objects().items():
            if name.startswith(place) and not name.endswith("/"):
                path = folder / name.removeprefix(place)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return folder

    def remove(self, name: str) -> None:
        with self._lock:
            self._storage.delete_file(BUCKET, name)

    def fail(
        self, probability: float, status: int | Literal["cut"] = 503, *, seed: int = 0
    ) -> None:
        """From now on a request fails with this probability; 0 ends the faults.

        A status comes in place of an answer, and nothing is done. "cut" ends the connection in the
        middle of an upload, of which nothing is kept; or else in the middle of the answer to a
        request that was carried out.
        """
        with self._lock:
            self._random.seed(seed)
            self._fault = (probability, 0 if status == "cut" else status)

    def deny_writes(self, denied: bool = True) -> None:
        """Answers 403 to all that changes something, as for credentials that may only read."""
        self._writable = not denied

    def call(self, function: Callable, *arguments: Any) -> Any:
        """What a function of a test's module returns in a process with this store's environment.

        The process is a fork of one that has imported TensorFlow. Exceptions come back as well.
        """
        here, there = FORKS.Pipe()  # no pool, whose locks a machine may refuse
        child = FORKS.Process(
            target=_answer, args=(there, self.environment, function, arguments), daemon=True
        )
        child.start()
        there.close()
        try:
            assert here.poll(HANGS_AFTER_SECONDS), "no answer"
            result, error = here.recv()
        except EOFError:
            child.join()
            raise RuntimeError(f"no answer, exit code {child.exitcode}") from None
        finally:
            child.kill()
            child.join()
        if error is not None:
            raise error
        return result

    def _fault_of(self, method: str, authorization: str | None) -> int | None:
        """The status in place of an answer; 0 for a cut, None for the true answer."""
        if authorization != f"Bearer {self.token}":
            return 401
        if method != "GET" and not self._writable:
            return 403
        with self._lock:
            probability, status = self._fault
            return status if self._random.random() < probability else None


def _answer(
    pipe: Connection, environment: dict[str, str], function: Callable, arguments: tuple
) -> None:
    os.environ.update(environment)
    try:
        answer = function(*arguments), None
    except Exception as error:
        answer = None, error
    pipe.send(answer)


class _Storage(Storage):
    """The emulator's, with flat names, and without what is kept after a deletion or on disk."""

    def _object_path(self, bucket_name, file_name):
        return f"{bucket_name}/{file_name.encode().hex()}"  # else `name` and `name/` are one

    def _bucket_soft_delete_retention_seconds(self, bucket_name):
        return 0

    def _write_config_to_file(self):
        """Nothing: it would write the list of all objects after each change."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, store: Store, certificate: Path):
        self.store = store
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate)
        super().__init__(("127.0.0.1", 0), lambda *given: _Handler(store._storage, *given))

    def handle_error(self, request, client_address):
        """Clients that are killed are part of the tests."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(emulator.RequestHandler):
    """A connection: CONNECT, TLS, then requests one after the other."""

    protocol_version = "HTTP/1.1"  # else every request takes a connection, and TLS, of its own
    disable_nagle_algorithm = True  # else 40 ms a request

    def do_CONNECT(self):
        self.send_response(200)
        self.end_headers()
        self.request = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.setup()
        self.close_connection = False

    def finish(self):
        try:
            super().finish()
        finally:
            self.connection.close()

    def send_response(self, code, message=None):
        self.status = int(code)
        super().send_response(code, message)

    def send_header(self, keyword, value):
        if keyword == "Location":  # of an upload; the emulator believes that it speaks HTTP
            value = value.replace("http://", "https://", 1)
        if (keyword, value) == ("Range", "bytes=0-0"):
            return  # the emulator's word for an upload of which nothing has come yet
        super().send_header(keyword, value)

    def _answer(self):
        store = self.server.store
        if self.path == "/token":
            self.rfile.read(int(self.headers["Content-Length"]))
            self.wfile.write(_json({"access_token": "token-of-the-test", "expires_in": 3600}))
            return
        fault = store._fault_of(self.command, self.headers.get("Authorization"))
        chunked = "chunked" in self.headers.get("Transfer-Encoding", "")
        length = int(self.headers.get("Content-Length", 0))
        if fault == 0 and (chunked or length):
            kind, name = _kind_and_name(self.command, self.path, self.headers, self.rfile.read1())
            answer = b""
        else:
            body = self._chunks() if chunked else self.rfile.read(length)
            kind, name = _kind_and_name(self.command, self.path, self.headers, body)
            answer = self._error(fault) if fault else self._answer_of_emulator(body, name)
        if fault == 0:
            self.status = 0
            self.close_connection = True
            answer = _half_of_body(answer)
        store.requests.append(Request(kind, name, self.status))
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _answer

    def _answer_of_emulator(self, body: bytes, name: str) -> bytes:
        """Lets the emulator answer; headers and body."""
        # A chunked body wins over Content-Length, which curl sends as well.
        del self.headers["Transfer-Encoding"], self.headers["Content-Length"]
        self.headers["Content-Length"] = str(len(body))
        stream = self.rfile, self.wfile
        self.rfile, self.wfile = io.BytesIO(body), io.BytesIO()
        try:
            with self.server.store._lock:
                if self._precondition_fails(name):
                    return self._error(412)
                emulator.Router(self).handle(self.command)
            answer = self.wfile.getvalue()
        finally:
            self.rfile, self.wfile = stream
        if self.status == 206 and answer.endswith(_END_OF_HEADERS):
            return self._error(416)  # a read beyond the end, which the emulator takes for a part
        return answer

    def _precondition_fails(self, name: str) -> bool:
        """Whether the object is not of the generation asked for, which the emulator ignores.

        0: there must be none, as for TensorFlow when it makes a folder.
        """
        parts = urlsplit(self.path)
        if not (wanted := parse_qs(parts.query).get("ifGenerationMatch")):
            return False
        bucket = re.search("/b/([^/]+)", parts.path)[1]
        now = self.storage.objects.get(bucket, {}).get(name, {"generation": "0"})
        return now["generation"] != wanted[0]

    def _chunks(self) -> bytes:
        body = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(body)

    def _error(self, status: int) -> bytes:
        self.status = status
        phrase = http.HTTPStatus(status).phrase
        return f"HTTP/1.1 {status} {phrase}\r\nContent-Length: 0\r\n\r\n".encode()


def _half_of_body(answer: bytes) -> bytes:
    """Nothing where there is no body: curl takes a part of the headers for an answer."""
    headers, end, body = answer.partition(_END_OF_HEADERS)
    return headers + end + body[: len(body) // 2] if body else b""


_read_data = emulator._read_data


def _data_or_nothing(handler, query):
    """An empty upload is b"", for which the emulator has None and then fails."""
    found = _read_data(handler, query)
    return b"" if found is None and query.get("uploadType") == ["media"] else found


emulator._read_data = _data_or_nothing


def _json(content: dict) -> bytes:
    text = json.dumps(content)
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


def _kind_and_name(method: str, path: str, headers, body: bytes) -> tuple[str, str]:
    """What a request is for, and its object, or a list's prefix."""
    parts = urlsplit(path)
    query = parse_qs(parts.query)
    if "/upload/" in parts.path:
        begins = query.get("uploadType") == ["resumable"] and method == "POST"
        how_far = headers.get("Content-Range", "")  # it came, is asked
        asks = how_far.startswith("bytes */") and how_far != "bytes */0"
        # Google's client sends a small object with its name in the first part of the body.
        in_body = re.search(rb'"name": "([^"]+)"', body) if "name" not in query else None
        name = in_body[1].decode() if in_body else query.get("name", [""])[0]
        return "other" if begins or asks else "write", name
    if not (found := re.match(r"/storage/v1/b/[^/]+(?:/o(?:/([^/]+))?)?", parts.path)):
        return "read", unquote(parts.path).split("/", 2)[-1]
    return "other", unquote(found[1]) if found[1] else query.get("prefix", [""])[0]


def _write_certificate(path: Path) -> None:
    """Writes a certificate of the hosts, which is its own authority, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test of an object store")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(list(map(x509.DNSName, HOSTS))), critical=False)
        .sign(key, hashes.SHA256())
    )
    own_format = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = signed.public_bytes(serialization.Encoding.PEM)
    path.write_bytes(pem + key.private_bytes(serialization.Encoding.PEM, *own_format))
