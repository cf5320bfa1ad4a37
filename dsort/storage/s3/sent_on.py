"""Reads of a gateway that sends its readers on to a server of bytes: 302 in reply to GetObject.

botocore takes such a reply for an error. The server of bytes has ETags of its own, so the gateway
is asked for the facts of the object before and after it has named the place: an object that was
replaced in between has another ETag then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import botocore.exceptions as boto

from dsort.errors import TransientStorageError
from dsort.storage.limit import StoreLimits
from dsort.storage.objects import error_of, meaning_of_status
from dsort.storage.redirects import RuledWeb, WebBody

_FOUND: Final = 302
_OK: Final = (200, 206)
_NATURAL: Final = r"[0-9]{1,19}"


def place_of(error: boto.ClientError) -> str:
    """The URL to which the reply ``error`` sends its reader on; "" if it is another error."""
    facts = error.response.get("ResponseMetadata", {})
    if facts.get("HTTPStatusCode") != _FOUND:
        return ""
    return str(facts.get("HTTPHeaders", {}).get("location", ""))


class SentOn:
    """Reads bytes at the places that the gateway at ``endpoint_url`` names."""

    def __init__(self, endpoint_url: str, limits: StoreLimits) -> None:
        self._web = RuledWeb(endpoint_url, limits, {})

    def get(
        self, url: str, wanted: str, head: Callable[[], Mapping[str, Any]], action: str
    ) -> tuple[dict[str, Any], WebBody]:
        """Request ``url``; returns (the fields of a reply of GetObject, the body). ``wanted``: the
        range as a header, or "". ``head``: requests the facts of the object."""
        reply = self._web.reply(action, "GET", url, {"Range": wanted} if wanted else {})
        if reply.status not in _OK:
            reply.close()
            raise error_of(meaning_of_status(reply.status), action)
        given, length = (
            reply.headers.get("Content-Range", ""),
            reply.headers.get("Content-Length", ""),
        )
        try:
            found = head()
            whole = given.rpartition("/")[2] or length
            if whole != str(found["ContentLength"]) or not re.fullmatch(_NATURAL, length):
                raise TransientStorageError(
                    f"cannot {action}: the reply is about {whole[:20] or 'no'} bytes, the object "
                    f"has {found['ContentLength']:,}"
                )
        except BaseException:
            reply.raw.close()
            raise
        facts = {
            **{name: found.get(name) for name in ("LastModified", "ETag")},
            "ContentLength": int(length),
            "ContentRange": given,
        }
        return facts, WebBody(reply.raw, int(length), action)
