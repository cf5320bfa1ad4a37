"""Which bucket: :class:`BucketRef`, and the texts that name one in an object store or on the web.

Such a text is checked here and nowhere else, whether it comes from a spec, a command line or a
settings file; what is wrong with it is said together with what was probably meant. No message
repeats a user, a password or a query: they may be secrets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from dsort.naming.names import INTERNAL_PART, closest, is_internal, shortened

__all__ = [
    "AIS_ENDPOINT_HINT",
    "OBJECT_STORES",
    "SECRET_HINT",
    "WEB",
    "BucketRef",
    "BucketTextError",
    "checked_endpoint",
    "is_secret_name",
    "misspelt_uri",
    "object_store_behind",
    "parse_store_uri",
    "shown",
    "split_scheme",
    "store_ref",
]


_PLAIN = ("", "file")


@dataclass(frozen=True, slots=True)
class BucketRef:
    """A bucket, by where it is. Made by ``dsort.spec.buckets.parse_bucket``, which checks it.

    ``scheme`` is one of

    - ``""``: a directory under the data root, ``path`` relative to it
    - ``file``: ``path`` is absolute
    - ``s3``, ``gs``, ``az``, ``ais``: ``path`` is ``bucket`` or ``bucket/prefix``
    - ``http``, ``https``: ``path`` is ``host[:port]`` or ``host[:port]/prefix``; read-only

    Paths are ``/``-separated, without ``..`` and empty parts, and decoded: ``%20`` of a URI is a
    space here. ``endpoint_url``, ``region`` and ``profile`` ("" where they are not given) say how
    an object store is reached; credentials never are in here.
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

        Of a URI's characters only those are encoded that would mean something else (``% # ?``).
        """
        if self.scheme == "":
            return self.path
        encoded = self.path.replace("%", "%25").replace("#", "%23").replace("?", "%3F")
        return f"{self.scheme}://{encoded}"

    @property
    def is_plain(self) -> bool:
        """Whether the text alone says all: no endpoint, region or profile goes with it."""
        return not (self.endpoint_url or self.region or self.profile)

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory of a file system."""
        return self.scheme in _PLAIN

    def __str__(self) -> str:
        return self.uri


OBJECT_STORES: Final = ("s3", "gs", "az", "ais")
WEB: Final = ("http", "https")
SECRET_HINT: Final = (
    "credentials never go into a spec or a settings file: they come from the environment, a "
    "profile or a role"
)
AIS_ENDPOINT_HINT: Final = (
    "set AIS_ENDPOINT=http://HOST:PORT, or endpoint_url under [stores.ais] in dsort.toml"
)

_KNOWN: Final = ("file", *OBJECT_STORES, *WEB)
_ALIASES: Final = {"aws": "s3", "gcp": "gs", "gcs": "gs", "azure": "az"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_ALMOST = re.compile(r"([A-Za-z][A-Za-z0-9]*)(?::/?|//|:///+)([^/:].*)?", re.DOTALL)
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?)")
_ENDPOINT = re.compile(r"(https?)://([^/?#]*)(/[^?#]*)?", re.IGNORECASE)
_PORT_MAX: Final = 65535
_PORT_DIGITS_MAX: Final = 10
_HOST_CHARACTERS_MAX: Final = 255

_NAMES: Final = {
    "s3": (
        re.compile(r"(?=.{3,63}$)[a-z0-9](?:[a-z0-9-]|\.(?!\.))*[a-z0-9]"),
        "S3 bucket names have 3 to 63 characters: a-z, 0-9, dots and hyphens, with a letter or a "
        "digit at both ends",
    ),
    "gs": (
        re.compile(r"(?=.{3,222}$)[a-z0-9](?:[a-z0-9_-]|\.(?!\.))*[a-z0-9]"),
        "GCS bucket names have 3 to 63 characters: a-z, 0-9, dots, hyphens and underscores, with a "
        "letter or a digit at both ends",
    ),
    "az": (
        re.compile(r"\$(?:root|web|logs)|(?=.{3,63}$)[a-z0-9](?:-?[a-z0-9])+"),
        "Azure container names have 3 to 63 characters: a-z, 0-9 and single hyphens; the account "
        "is no part of them, but of AZURE_STORAGE_ACCOUNT_NAME or the endpoint_url",
    ),
    "ais": (
        re.compile(r"(?=.{1,255}$)[A-Za-z0-9_-](?:[A-Za-z0-9_-]|\.(?!\.))*"),
        "bucket names have letters, digits, dots, hyphens and underscores",
    ),
}
"""What the bucket of each store may be called, and how to say so. ``ais`` is what servers with an
endpoint of their own take at most."""

_AMAZON = re.compile(r"(?:(?P<bucket>.+)\.)?s3(?:[.-][a-z0-9.-]*)?\.amazonaws\.com(?:\.cn)?")
_GOOGLE = re.compile(r"(?:(?P<bucket>.+)\.)?storage\.googleapis\.com")
_AZURE = re.compile(r"[a-z0-9]+\.(?:blob|dfs)\.core\.windows\.net")

_SECRET = re.compile(
    r"secret|token|passw|credential|signature|sas$|sas_|api_?key|account_?key|access_?key"
    r"|private_?key|key_?id|^(?:user|username|login|auth)$",
)


class BucketTextError(ValueError):
    """What is wrong with the address of a bucket, with a ``hint`` (may be empty)."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def split_scheme(text: str) -> tuple[str, str] | None:
    """(scheme, rest) of ``scheme://rest``, or None. The scheme is in lower case, and the one that
    dsort writes where a provider has several (``aws``, ``gcp``, ``azure``)."""
    match = _SCHEME.fullmatch(text)
    if match is None:
        return None
    scheme = match[1].lower()
    return _ALIASES.get(scheme, scheme), match[2]


def is_secret_name(field: str) -> bool:
    """Whether a field of this name would hold a secret, or half of one."""
    return _SECRET.search(field.lower().replace("-", "_")) is not None


def shown(text: str) -> str:
    """``text`` in quotes for a message, without what may be a secret: user, password, query."""
    without_query = re.sub(r"[?#].*", "?...", text, flags=re.DOTALL)
    clean = re.sub(r"^(\w*:/*)?.*@", r"\1...@", without_query, flags=re.DOTALL)
    return f'"{shortened(clean)}"' if clean.isprintable() else ascii(shortened(clean))


def parse_store_uri(text: str) -> BucketRef:
    """The bucket that a URI such as ``s3://bucket/prefix`` or ``https://host/prefix`` means.

    ``%20`` and the like are decoded. ``BucketTextError`` with a hint if it is none; directories are
    not for this function.
    """
    scheme, rest = split_scheme(text) or ("", text)
    if scheme not in (*OBJECT_STORES, *WEB):
        raise _unknown_scheme(scheme, text)
    bucket, _, prefix = rest.partition("/")
    if _has_user(bucket, rest):
        raise BucketTextError(f"{shown(text)} has a user or a password in it", SECRET_HINT)
    if "?" in rest or "#" in rest:
        raise BucketTextError(
            f"{shown(text)} has a query or a fragment",
            "names are appended to it, so it cannot be a presigned URL"
            if scheme in WEB
            else "write # as %23 and ? as %3F",
        )
    if not bucket:
        what = "host" if scheme in WEB else "bucket"
        meant = prefix.strip("/") or f"{what}/prefix"
        raise BucketTextError(f"{shown(text)} names no {what}", f'write "{scheme}://{meant}"')
    if scheme in WEB:
        return BucketRef(scheme, _joined(_checked_host(bucket, text), _decoded(prefix, text), text))
    return store_ref(scheme, _decoded(bucket, text), _decoded(prefix, text), written=text)


def store_ref(
    scheme: str,
    bucket: str,
    prefix: str = "",
    *,
    endpoint_url: str = "",
    region: str = "",
    profile: str = "",
    written: str = "",
) -> BucketRef:
    """The bucket ``bucket`` of an object store, and ``prefix`` in it; both as they are, decoded.

    ``written``: how the user wrote it, for messages. A server with an endpoint of its own may have
    other rules for names than the provider, so only the mildest apply. ``BucketTextError``.
    """
    text = written or f"{scheme}://{bucket}"
    pattern, rule = _NAMES["ais" if endpoint_url else scheme]
    if not pattern.fullmatch(bucket):
        raise BucketTextError(f"{shown(text)}: no bucket can be called {shown(bucket)}", rule)
    path = _joined(bucket, prefix, text)
    return BucketRef(scheme, path, endpoint_url, region, profile)


def _has_user(authority: str, rest: str) -> bool:
    """Whether ``rest``, from its ``authority`` on, begins with ``user:password@``. A password may
    have a slash in it."""
    if "@" in authority:
        return True
    is_port = authority.endswith("]") or authority.rpartition(":")[2].isdecimal()
    return ":" in authority and "@" in rest and not is_port


def _joined(bucket: str, prefix: str, text: str) -> str:
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
    """``BucketTextError`` for what is inside a ``.dsort``, written as ``text``."""
    if is_internal(path):
        raise BucketTextError(
            f"{shown(text)}: {INTERNAL_PART} is dsort's own, and no bucket",
            f"name the bucket that has the {INTERNAL_PART} in it, or another one",
        )


def _decoded(part: str, text: str) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeError:
        raise BucketTextError(f"{shown(text)} is not UTF-8") from None


def _checked_host(host: str, text: str) -> str:
    name, colon, port = host, "", ""
    if not host.endswith("]"):
        name, colon, port = host.rpartition(":") if ":" in host else (host, "", "")
    port_is_right = not colon or (
        port.isdecimal() and len(port) <= _PORT_DIGITS_MAX and 0 < int(port) <= _PORT_MAX
    )
    if len(name) > _HOST_CHARACTERS_MAX or not _HOST.fullmatch(name) or not port_is_right:
        raise BucketTextError(f"{shown(text)} has no proper host", 'e.g. "https://host:8080"')
    return host.lower()


def checked_endpoint(text: str) -> str:
    """``text`` as the URL of a server's interface, without a slash at its end.

    ``BucketTextError`` unless it is ``http(s)://host[:port][/path]``.
    """
    example = 'e.g. "https://s3.example.com" or "http://10.0.0.1:8333"'
    match = _ENDPOINT.match(text)
    if match and _has_user(match[2], text.partition("://")[2]):
        raise BucketTextError(f"{shown(text)} has a user or a password in it", SECRET_HINT)
    if match is None:
        scheme = split_scheme(text)
        hint = f'write "http://{text}" or "https://{text}"' if _is_host(text) else example
        wrong = f"{scheme[0]}:// is no way to reach a server" if scheme else "it is no URL"
        raise BucketTextError(f"{shown(text)}: {wrong}", hint)
    if match.end() != len(text):
        raise BucketTextError(f"{shown(text)} has a query or a fragment", example)
    if not text.isprintable() or " " in text:
        raise BucketTextError(f"{shown(text)} contains characters that no URL has", example)
    host = _checked_host(match[2], text)
    return f"{match[1].lower()}://{host}{(match[3] or '').rstrip('/')}"


def _is_host(text: str) -> bool:
    host, colon, port = text.rstrip("/").partition(":")
    return _HOST.fullmatch(host) is not None and (port.isdecimal() if colon else "." in host)


def misspelt_uri(text: str) -> BucketTextError | None:
    """What is wrong with a text that was meant as a URI and is none (``s3:/bucket``, ``gs:bucket``,
    ``s3//bucket``), or None if it was not meant so."""
    match = _ALMOST.fullmatch(text)
    scheme = _ALIASES.get(match[1].lower(), match[1].lower()) if match else ""
    if match is None or scheme not in _KNOWN:
        return None
    rest = (match[2] or "").strip("/")
    if "@" in rest:
        return BucketTextError(f"{shown(text)} is no bucket name", SECRET_HINT)
    slashes = ":///" if scheme == "file" else "://"
    meant = f"{scheme}{slashes}{rest or 'bucket/prefix'}"
    return BucketTextError(f"{shown(text)} is no bucket name", f'did you mean "{meant}"?')


def _unknown_scheme(scheme: str, text: str) -> BucketTextError:
    near = closest(scheme, _KNOWN)
    known = " ".join(f"{each}://" for each in _KNOWN)
    if scheme in ("ht", "oc", "oci", "hdfs"):
        return BucketTextError(f"{shown(text)}: {scheme}:// is not supported", f"known: {known}")
    hint = f'did you mean "{near}://"?' if near else f"known: {known}"
    return BucketTextError(f"{shown(text)} has an unknown scheme", hint)


def object_store_behind(ref: BucketRef) -> str | None:
    """The bucket, as ``s3://``, ``gs://`` or ``az://``, that has the web address ``ref``, or None.

    For hints: over the web it can be read only.
    """
    host, _, path = ref.path.partition("/")
    for scheme, pattern in (("s3", _AMAZON), ("gs", _GOOGLE), ("az", _AZURE)):
        match = pattern.fullmatch(host)
        if match:
            bucket = match.groupdict().get("bucket")
            rest = "/".join(filter(None, (bucket, path)))
            return BucketRef(scheme, rest).uri if rest else None
    return None
