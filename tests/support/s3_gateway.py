"""A stand-in for the S3 gateway of the Hugging Face Hub, as a process of its own in front of a real
S3 server.

It differs from AWS as the documentation of the Hub describes: a namespace in the path of the
endpoint, us-east-1, no ``aws-chunked`` bodies, only ListObjectsV2, no versions, no UploadPartCopy,
conditions only of PutObject and of the source of CopyObject, other names of objects, and 302 for a
GetObject unless the client is botocore, aws-cli or aws-sdk-rust. Signatures are checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import urllib3

from tests.support.local_servers import LocalServer, QuietHandler, process_of_two, serve_two
from tests.support.seaweedfs import S3Server

NAMESPACE = "lab"
REGION = "us-east-1"
KEY, SECRET = "HFAKTESTKEY", "gateway-secret"
_OK = 200
PROXIED = ("aws-cli", "botocore", "aws-sdk-rust")
CONDITIONS = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")
UNUSED = ("host", "connection", "authorization", "x-amz-date", "x-amz-content-sha256", "expect")
"""Headers of a request that are not passed on: the gateway signs it anew."""


@dataclass(frozen=True)
class Gateway:
    """A running stand-in. ``server``: the S3 server behind it."""

    directory: Path
    endpoint_url: str
    data_url: str
    server: S3Server
    pid: int

    def behave(self, **how: bool) -> None:
        """``redirects_all``: requests of botocore are redirected, too. ``moved_to``: the URL to
        which requests are redirected."""
        (self.directory / "behaviour.new").write_text(json.dumps(how))
        (self.directory / "behaviour.new").replace(self.directory / "behaviour.json")

    def requests(self) -> list[tuple[str, int]]:
        """The requests so far: operations, and the status of each reply."""
        path = self.directory / "requests.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(operation, status) for operation, status in map(json.loads, lines)]

    def forget_requests(self) -> None:
        """Begin to count requests anew."""
        (self.directory / "requests.jsonl").unlink(missing_ok=True)

    def environment(self) -> dict[str, str]:
        """The environment variables with which a process has access."""
        own = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        return {**self.server.environment(), **own, "AWS_ENDPOINT_URL": self.endpoint_url}

    def new_bucket(self) -> str:
        """Make a bucket. Returns its name."""
        name = self.server.new_bucket_name()
        self.server.client().create_bucket(Bucket=name)
        return name


@contextmanager
def s3_gateway(directory: Path, server: S3Server) -> Iterator[Gateway]:
    """A stand-in in front of ``server``, until the end of the block."""
    behind = {"UPSTREAM": server.endpoint_url, **server.environment()}
    with process_of_two("tests.support.s3_gateway", directory, behind) as (pid, api, data):
        yield Gateway(directory, f"{api}/{NAMESPACE}", data, server, pid)


# --- the process ----------------------------------------------------------------------------------


class _RefusedError(Exception):
    """The request is answered with an error."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class _Server(LocalServer):
    def __init__(self, handler: type[_Handler], directory: Path) -> None:
        super().__init__(handler)
        self.directory = directory
        self.data_url = ""
        self.lock = threading.Lock()
        self.upstream = os.environ["UPSTREAM"]
        self.pool = urllib3.PoolManager(maxsize=16)
        self.signer = botocore.auth.S3SigV4Auth(_own_credentials(), "s3", REGION)

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> urllib3.BaseHTTPResponse:
        """The reply of the server behind the gateway to a request that the gateway has signed."""
        url = f"{self.upstream}{path}"
        request = botocore.awsrequest.AWSRequest(method, url, headers=headers, data=body)
        self.signer.add_auth(request)
        sent = {name: str(value) for name, value in request.headers.items()}
        return self.pool.request(
            method, url, body=body, headers=sent, redirect=False, decode_content=False
        )


def _own_credentials() -> botocore.credentials.Credentials:
    return botocore.credentials.Credentials(
        os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    )


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet: two would wait for each other
    server: _Server
    operation = "data"

    def do_GET(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_DELETE(self) -> None:
        self.answer()

    def answer(self) -> None:
        raise NotImplementedError

    def handle_expect_100(self) -> bool:
        """Let the client send its body at once."""
        more = super().handle_expect_100()
        self.wfile.flush()
        return more

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        with self.server.lock, (self.server.directory / "requests.jsonl").open("a") as file:
            file.write(json.dumps([self.operation, status]) + "\n")
        self.send_response(status)
        length = headers.get("Content-Length") if self.command == "HEAD" else None
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):
                self.wfile.write(body)


class _Gateway(_Handler):
    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        self.query = parse_qs(parts.query, keep_blank_values=True)
        self.path_parts = parts.path.lstrip("/").split("/", 2)
        self.operation = self._operation()
        try:
            self._check_signature()
            self._check(self.operation)
            self._pass_on(self.operation, parts.query, body)
        except _RefusedError as refused:
            said = f"<Error><Code>{refused.code}</Code><Message>refused</Message></Error>"
            self.send(refused.status, {"Content-Type": "application/xml"}, said.encode())

    def _operation(self) -> str:
        is_object, query, method = len(self.path_parts) == 3, self.query, self.command
        if not is_object:
            by_query = {"uploads": "ListMultipartUploads", "delete": "DeleteObjects"}
            named = next((each for name, each in by_query.items() if name in query), "")
            lists = "ListObjectsV2" if query.get("list-type") == ["2"] else "ListObjects"
            plain = {"GET": lists, "HEAD": "HeadBucket", "PUT": "CreateBucket"}
            return named or plain.get(method, "DeleteBucket")
        if method == "PUT":
            copies = "x-amz-copy-source" in self.headers
            if "partNumber" in query:
                return "UploadPartCopy" if copies else "UploadPart"
            return "CopyObject" if copies else "PutObject"
        if method == "POST":
            return "CreateMultipartUpload" if "uploads" in query else "CompleteMultipartUpload"
        if "uploadId" in query:
            return "ListParts" if method == "GET" else "AbortMultipartUpload"
        return {"GET": "GetObject", "HEAD": "HeadObject"}.get(method, "DeleteObject")

    def _check_signature(self) -> None:
        given = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/\d+/([^/]+)/s3/aws4_request, "
            r"SignedHeaders=([^,]+), Signature=([0-9a-f]+)",
            self.headers.get("Authorization", ""),
        )
        if given is None:
            raise _RefusedError(403, "AccessDenied")
        if given[2] != REGION:
            raise _RefusedError(400, "AuthorizationHeaderMalformed")
        if given[1] != KEY:
            raise _RefusedError(403, "InvalidAccessKeyId")
        url = f"http://{self.headers['Host']}{self.path}"
        signed = {name: self.headers.get(name, "") for name in given[3].split(";")}
        request = botocore.awsrequest.AWSRequest(self.command, url, headers=signed)
        request.context["timestamp"] = self.headers["x-amz-date"]
        signer = botocore.auth.S3SigV4Auth(
            botocore.credentials.Credentials(KEY, SECRET), "s3", REGION
        )
        text = signer.string_to_sign(request, signer.canonical_request(request))
        if signer.signature(text, request) != given[4]:
            raise _RefusedError(403, "SignatureDoesNotMatch")

    def _check(self, operation: str) -> None:
        namespace, *rest = self.path_parts
        key = unquote(rest[1]) if len(rest) == 2 else "key"
        is_wrong_key = re.search(r"^/|/$|//|\.\./|^\./|\.\.$|[\\\0]", key)
        if namespace != NAMESPACE or not rest:
            raise _RefusedError(404, "NoSuchBucket")
        if is_wrong_key or self.query.get("delimiter", ["/"]) != ["/"]:
            raise _RefusedError(400, "InvalidArgument")
        if operation in ("ListObjects", "UploadPartCopy"):
            raise _RefusedError(501, "NotImplemented")
        if (
            "aws-chunked" in self.headers.get("Content-Encoding", "")
            or "x-amz-trailer" in self.headers
        ):
            raise _RefusedError(400, "InvalidRequest")

    def _pass_on(self, operation: str, query: str, body: bytes) -> None:
        path = "/" + "/".join(self.path_parts[1:])
        agent = self.headers.get("User-Agent", "").lower()
        how = _behaviour(self.server.directory)
        is_proxied = any(each in agent for each in PROXIED) and not how.get("redirects_all")
        if operation == "GetObject" and not is_proxied:
            if self.server.ask("HEAD", path, {}).status != _OK:
                raise _RefusedError(404, "NoSuchKey")
            sign = hashlib.sha256(path.encode()).hexdigest()
            there = how.get("moved_to", f"{self.server.data_url}{path}?X-Sig={sign}")
            self.send(302, {"Location": there}, b"")
            return
        dropped = {*UNUSED, *(name.lower() for name in self._ignored(operation))}
        headers = {name: text for name, text in self.headers.items() if name.lower() not in dropped}
        kept = [each for each in query.split("&") if not each.startswith("versionId=")]
        path += "?" + "&".join(kept) if query else ""
        reply = self.server.ask(self.command, path, headers, body)
        said = {n: text for n, text in reply.headers.items() if n.lower() != "x-amz-version-id"}
        self.send(reply.status, said, reply.data)

    def _ignored(self, operation: str) -> tuple[str, ...]:
        return () if operation in ("PutObject", "CopyObject") else CONDITIONS


class _Data(_Handler):
    """The server of bytes, which answers only requests for a signed address. Its etags differ from
    those of the gateway."""

    def answer(self) -> None:
        parts = urlsplit(self.path)
        sign = hashlib.sha256(parts.path.encode()).hexdigest()
        if self.headers.get("Authorization") or parse_qs(parts.query).get("X-Sig") != [sign]:
            self.send(403, {}, b"")
            return
        wanted = {"Range": self.headers["Range"]} if "Range" in self.headers else {}
        reply = self.server.ask("GET", parts.path, wanted)
        headers = {**reply.headers, "ETag": '"of-the-bytes"'}
        self.send(reply.status, headers, reply.data)


def _behaviour(directory: Path) -> dict[str, Any]:
    with suppress(FileNotFoundError):
        found: dict[str, Any] = json.loads((directory / "behaviour.json").read_bytes())
        return found
    return {}


def main() -> None:
    directory = Path(sys.argv[1])
    api, data = _Server(_Gateway, directory), _Server(_Data, directory)
    api.data_url = data.url
    serve_two(api, data)


if __name__ == "__main__":
    main()
