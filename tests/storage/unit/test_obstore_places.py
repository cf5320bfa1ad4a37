"""Where requests for Google's and Microsoft's stores go: to the endpoint, the bucket and the prefix
that were named. (The real services are not to be had in a test.)"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from dsort.errors import ObjectNotFoundError
from dsort.storage.open import open_bucket
from dsort.storage.ref import BucketRef


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """The address of a server that has nothing, and the paths that it was asked for."""
    paths: list[str] = []

    class Nothing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            paths.append(unquote(self.path.partition("?")[0]))
            self.send_response(404)
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()

        def log_message(self, *args: object) -> None:
            """Not here."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()
        thread.join()


def test_google_is_asked_at_its_endpoint(
    asked: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint_url, paths = asked
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    bucket = open_bucket(BucketRef("gs", "shards/train", endpoint_url=endpoint_url), root=Path())
    with pytest.raises(ObjectNotFoundError):
        bucket.stat("a b.tar")
    assert paths == ["/shards/train/a b.tar"]


def test_azure_is_asked_at_its_endpoint(
    asked: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint_url, paths = asked
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "somebody")
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
    bucket = open_bucket(BucketRef("az", "shards/train", endpoint_url=endpoint_url), root=Path())
    with pytest.raises(ObjectNotFoundError):
        bucket.stat("a.tar")
    assert paths == ["/shards/train/a.tar"]
