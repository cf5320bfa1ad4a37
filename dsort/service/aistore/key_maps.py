"""External key maps that AIStore's Python SDK stores beside the inputs of a job before its start.

The SDK writes the key map as the object ``ekm-file.json`` into the input bucket, and puts the
object's URL into the spec. This service does not store ``ekm-file.json``. The service holds the key
map in memory until the job is started; then the key map becomes the field ``ekm`` of the spec.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from dsort.errors import SpecError, SpecProblem
from dsort.spec.syntax import parse_json

KEY_MAP_NAME: Final = "ekm-file.json"

_HELD_MAX: Final = 64
_HELD_BYTES_MAX: Final = 16 << 20
_HELD_S_MAX: Final = 600.0
_PATH: Final = re.compile(rf"/v1/objects/(?P<bucket>.+)/{re.escape(KEY_MAP_NAME)}")

Place = tuple[str, str]
"""The owner of the key map, and the bucket that it was put into."""


class HeldKeyMaps:
    """Key maps between their PUT and the start of their job: a few, for some minutes, in memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._held: OrderedDict[Place, tuple[float, bytes]] = OrderedDict()

    def put(self, owner: str, bucket: str, data: bytes) -> None:
        """Hold ``data``. Key maps that are too old are dropped; if there are too many, the oldest
        is dropped, too."""
        with self._lock:
            self._held.pop((owner, bucket), None)
            self._held[owner, bucket] = (self._clock(), data)
            while self._is_too_much():
                self._held.popitem(last=False)

    def get(self, owner: str, bucket: str) -> bytes | None:
        """The newest key map that ``owner`` put into ``bucket``, if it is still held."""
        with self._lock:
            put_at, data = self._held.get((owner, bucket), (0.0, None))
            return None if self._clock() - put_at > _HELD_S_MAX else data

    def _is_too_much(self) -> bool:
        oldest_at, _ = next(iter(self._held.values()))
        size_bytes = sum(len(data) for _, data in self._held.values())
        return len(self._held) > 1 and (
            len(self._held) > _HELD_MAX
            or size_bytes > _HELD_BYTES_MAX
            or self._clock() - oldest_at > _HELD_S_MAX
        )


def with_key_map(
    spec: Mapping[str, Any], held: HeldKeyMaps, *, owner: str, address: str
) -> dict[str, Any]:
    """``spec`` with the key map of its ``ekm_file``, if this field is a URL of this service
    (``address``: host and port as the client uses them). ``SpecError`` if the key map is not
    held."""
    url = spec.get("ekm_file")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        return dict(spec)
    parts = urlsplit(url)
    match = _PATH.fullmatch(unquote(parts.path))
    if match is None or parts.netloc != address:
        return dict(spec)
    data = held.get(owner, match["bucket"])
    if data is None:
        raise SpecError(
            [
                SpecProblem(
                    "ekm_file",
                    f"no key map was put into {match['bucket']} lately",
                    "start the job again: the SDK sends the key map again; or set ekm in the spec",
                )
            ]
        )
    rest = {name: value for name, value in spec.items() if name not in _REPLACED}
    return {**rest, "ekm": _parsed(data)}


_REPLACED: Final = ("ekm_file", "ekm_file_sep", "ekm_sep")


def _parsed(data: bytes) -> Any:
    try:
        return parse_json(data.decode(), KEY_MAP_NAME)
    except UnicodeDecodeError:
        raise SpecError([SpecProblem("ekm_file", f"{KEY_MAP_NAME} is not UTF-8")]) from None
