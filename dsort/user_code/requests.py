"""Sends members or records to a server that changes them: AIStore's ETL containers work unchanged.

A PUT has the content, and the body of its response is the result (``hpush://``).
"""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from dsort.user_code.frames import BadResultError, Outcome, Runner, Sample, said_briefly
from dsort.user_code.programs import read_tar, tar_of

TRIES_MAX = 4
PAUSE_S = 0.2
ANSWER_BYTES_MAX = 4 << 30
SHOWN_BYTES = 300
PASSING = (429, 502, 503, 504)
"""Status codes of a server that is busy or not available yet."""


class PushError(Exception):
    """A server returned no result for the content."""


class PushRunner(Runner):
    """``members``: the extensions of members to send, with the names of their results; None:
    records are sent as tars."""

    def __init__(self, program: Mapping[str, Any]) -> None:
        self._members: dict[str, str] | None = program["members"]
        self._drop = frozenset(program["drop"])
        self._timeout_s: float = program["timeout_s"]
        parts = urlsplit(program["url"])
        self._host, self._port = parts.hostname or "", parts.port
        self._is_safe = parts.scheme == "https"
        self._path = parts.path.rstrip("/")
        query = [parts.query] if parts.query else []
        if program["args"]:
            query.append(urlencode({"etl_args": program["args"]}))
        self._query = "?" + "&".join(query) if query else ""
        self._link: http.client.HTTPConnection | None = None

    def run(self, samples: Sequence[Sample]) -> list[Outcome]:
        """See :class:`Runner`."""
        return [self._one(sample) for sample in samples]

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            self._link.close()
        self._link = None

    def _one(self, sample: Sample) -> Outcome:
        try:
            if self._members is None:
                made = read_tar(self._pushed(f"{sample.key}.tar", tar_of([sample])))
            else:
                members = dict(sample.members)
                for old, new in self._members.items():
                    if old in sample.members:
                        found = self._pushed(f"{sample.key}.{old}", sample.members[old])
                        members.pop(old, None)
                        members[new] = found
                made = [Sample(sample.key, members)]
        except (PushError, BadResultError) as error:
            return str(error)
        for each in made:
            for name in self._drop & each.members.keys():
                del each.members[name]
        return [each for each in made if each.members]

    def _pushed(self, name: str, data: bytes) -> bytes:
        """The response to ``data``. ``PushError``, at once or, for a passing error, after several
        tries."""
        late, pause = time.monotonic() + self._timeout_s, PAUSE_S
        for tries in range(1, TRIES_MAX + 1):
            was_open = self._link is not None
            try:
                status, body = self._answer(name, data)
            except http.client.IncompleteRead:
                self.close()
                raise PushError("the server cut its answer off") from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if isinstance(error, TimeoutError):
                    text = f"it took longer than {self._timeout_s:g} s"
                    raise PushError(text) from None
                problem = said_briefly(f"{type(error).__name__}: {error}")
                if was_open:  # the server may have closed the connection that was kept open
                    continue
            else:
                if status == http.HTTPStatus.OK:
                    return body
                shown = said_briefly(body[:SHOWN_BYTES].decode("utf-8", "replace"))
                problem = f"the server answered {status}" + (f": {shown}" if shown else "")
                if status not in PASSING:
                    break
            if tries == TRIES_MAX or time.monotonic() + pause > late:
                break
            time.sleep(pause)
            pause *= 2
        raise PushError(problem)

    def _answer(self, name: str, data: bytes) -> tuple[int, bytes]:
        if self._link is None:
            kind = http.client.HTTPSConnection if self._is_safe else http.client.HTTPConnection
            self._link = kind(self._host, self._port, timeout=self._timeout_s)
        path = quote(name.encode("utf-8", "surrogateescape"))
        headers = {"Content-Type": "application/octet-stream"}
        self._link.request("PUT", f"{self._path}/{path}{self._query}", data, headers)
        response = self._link.getresponse()
        body = response.read(ANSWER_BYTES_MAX + 1)
        if len(body) > ANSWER_BYTES_MAX:
            raise PushError("the server's answer does not end")
        if response.length:  # read() of a bounded part does not raise an error
            self.close()
            raise http.client.IncompleteRead(body, response.length)
        if response.will_close:
            with contextlib.suppress(OSError):
                self.close()
        return response.status, body
