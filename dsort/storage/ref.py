"""References to buckets: :class:`BucketRef`, and checks of the texts that name a bucket.

The :mod:`~dsort.storage.registry` parses these texts with the functions here. Messages never repeat
a user, a password or a query, which may be secrets.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from dsort.naming.names import INTERNAL_PART, is_internal, shortened

_PLAIN = ("", "file")
STREAM: Final = "stream"
"""The scheme of standard input and output, which specs write as ``-``."""
PIPE: Final = "pipe"
"""The scheme of the output of a program. The path is the program and its arguments, as a JSON
list."""


def object_uri(bucket_uri: str, name: str) -> str:
    """The URI of an object."""
    return f"{bucket_uri.rstrip('/')}/{_encoded(name)}"


def _encoded(path: str) -> str:
    return path.replace("%", "%25").replace("#", "%23").replace("?", "%3F")


class BucketRef(Struct, frozen=True):
    """The address of a bucket. Made by ``dsort.spec.buckets.parse_bucket``, which checks it.

    ``scheme`` is one of

    - ``""``: a directory under the data root, ``path`` relative to it
    - ``file``: ``path`` is absolute
    - ``s3``, ``gs``, ``az``, ``ais``: ``path`` is ``bucket`` or ``bucket/prefix``
    - ``http``, ``https``: ``path`` is ``host[:port]`` or ``host[:port]/prefix``; read-only
    - ``stream``: standard input, or standard output; ``path`` is ``-``
    - ``pipe``: the output of a program; ``path`` is the program and its arguments, as a JSON list
    - the scheme of any other store in the registry

    Paths are ``/``-separated, without ``..`` and empty parts, and decoded: ``%20`` of a URI is a
    space here. ``endpoint_url``, ``region`` and ``profile`` ("" where they are not given) set how
    an object store is reached. Credentials are never stored here.
    """

    scheme: str
    path: str
    endpoint_url: str = ""
    region: str = ""
    profile: str = ""

    @property
    def uri(self) -> str:
        """The one canonical text of this bucket: ``images``, ``file:///data/images`` or
        ``s3://bucket/prefix``.

        Only ``%``, ``#`` and ``?`` are encoded, because they have a special meaning in a URI.
        """
        if self.scheme in ("", STREAM):
            return self.path
        if self.scheme == PIPE:
            return f"{PIPE}:{self.path}"
        return f"{self.scheme}://{_encoded(self.path)}"

    @property
    def is_plain(self) -> bool:
        """Whether the URI is the whole reference: there is no endpoint, region or profile."""
        return not (self.endpoint_url or self.region or self.profile)

    @property
    def is_directory(self) -> bool:
        """Whether the bucket is a directory of a file system."""
        return self.scheme in _PLAIN

    @property
    def is_stream(self) -> bool:
        """Whether this is no bucket, but a stream that can be read or written only once: standard
        input or output, or the output of a program."""
        return self.scheme in (STREAM, PIPE)

    def __str__(self) -> str:
        return self.uri


AIS_ENDPOINT_HINT: Final = (
    "set AIS_ENDPOINT=http://HOST:PORT, or endpoint_url under [stores.ais] in dsort.toml"
)
SECRET_HINT: Final = (
    "credentials never go into a spec or a settings file: they come from the environment, a "
    "profile or a role"
)

_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?)"
_ENDPOINT = r"(https?)://([^/?#]*)(/[^?#]*)?"
_PORT_MAX: Final = 65535
_PORT_DIGITS_MAX: Final = 10
_HOST_CHARACTERS_MAX: Final = 255


_SECRET = (
    r"secret|token|passw|credential|signature|sas$|sas_|api_?key|account_?key|access_?key"
    r"|private_?key|key_?id|^(?:user|username|login|auth)$"
)


class BucketTextError(ValueError):
    """The address of a bucket is wrong. With a ``hint``, which may be empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def is_secret_name(field: str) -> bool:
    """Whether a field of this name would hold a secret, or a part of one."""
    return re.search(_SECRET, field.lower().replace("-", "_")) is not None


def shown(text: str) -> str:
    """``text`` in quotes for a message, without parts that may be secrets: user, password,
    query."""
    without_query = re.sub(r"[?#].*", "?...", text, flags=re.DOTALL)
    clean = re.sub(r"^(\w*:/*)?.*@", r"\1...@", without_query, flags=re.DOTALL)
    return f'"{shortened(clean)}"' if clean.isprintable() else ascii(shortened(clean))


def has_user(authority: str, rest: str) -> bool:
    """Whether ``rest`` begins with ``user:password@``. ``authority``: the part of ``rest`` before
    its first slash, which may be a slash of the password."""
    if "@" in authority:
        return True
    is_port = authority.endswith("]") or authority.rpartition(":")[2].isdecimal()
    return ":" in authority and "@" in rest and not is_port


def joined_path(bucket: str, prefix: str, text: str) -> str:
    """The path of ``prefix`` in ``bucket``. ``BucketTextError``, which quotes ``text``, for invalid
    parts."""
    if not prefix.isprintable():
        raise BucketTextError(f"{shown(text)} contains characters that cannot be printed")
    prefix = prefix.removesuffix("/")
    parts = prefix.split("/") if prefix else []
    if "." in parts or ".." in parts:
        raise BucketTextError(
            f'{shown(text)} has a "." or ".." part', "write the prefix as it is in the store"
        )
    if "" in parts:
        raise BucketTextError(
            f"{shown(text)} has an empty part (two slashes in a row)",
            'a prefix is written "train/2024"',
        )
    refuse_internal(prefix, text)
    return "/".join((bucket, *parts))


def refuse_internal(path: str, text: str) -> None:
    """``BucketTextError``, which quotes ``text``, for a ``path`` inside a ``.dsort``."""
    if is_internal(path):
        raise BucketTextError(
            f"{shown(text)}: {INTERNAL_PART} is dsort's own, and no bucket",
            f"name the bucket that has the {INTERNAL_PART} in it, or another one",
        )


def decoded(part: str, text: str) -> str:
    """A part of the URI ``text``, with ``%20`` and the like decoded."""
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeError:
        raise BucketTextError(f"{shown(text)} is not UTF-8") from None


def checked_host(host: str, text: str) -> str:
    """``host[:port]`` of the URL ``text``, in lower case. ``BucketTextError`` if it is invalid."""
    name, colon, port = host, "", ""
    if not host.endswith("]"):
        name, colon, port = host.rpartition(":") if ":" in host else (host, "", "")
    port_is_right = not colon or (
        port.isdecimal() and len(port) <= _PORT_DIGITS_MAX and 0 < int(port) <= _PORT_MAX
    )
    if len(name) > _HOST_CHARACTERS_MAX or not re.fullmatch(_HOST, name) or not port_is_right:
        raise BucketTextError(f"{shown(text)} has no proper host", 'e.g. "https://host:8080"')
    return host.lower()


def checked_endpoint(text: str) -> str:
    """``text`` as the URL of a server's interface, without a slash at its end.

    ``BucketTextError`` unless it is ``http(s)://host[:port][/path]``.
    """
    example = 'e.g. "https://s3.example.com" or "http://10.0.0.1:8333"'
    match = re.match(_ENDPOINT, text, re.IGNORECASE)
    if match and has_user(match[2], text.partition("://")[2]):
        raise BucketTextError(f"{shown(text)} has a user or a password in it", SECRET_HINT)
    if match is None:
        hint = f'write "http://{text}" or "https://{text}"' if _is_host(text) else example
        scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text)
        wrong = f"{scheme[1].lower()}:// is no way to reach a server" if scheme else "it is no URL"
        raise BucketTextError(f"{shown(text)}: {wrong}", hint)
    if match.end() != len(text):
        raise BucketTextError(f"{shown(text)} has a query or a fragment", example)
    if not text.isprintable() or " " in text:
        raise BucketTextError(f"{shown(text)} contains characters that no URL has", example)
    host = checked_host(match[2], text)
    return f"{match[1].lower()}://{host}{(match[3] or '').rstrip('/')}"


def _is_host(text: str) -> bool:
    host, colon, port = text.rstrip("/").partition(":")
    return re.fullmatch(_HOST, host) is not None and (port.isdecimal() if colon else "." in host)
