"""Which bucket a spec means: ``images``, ``file:///data/images`` or ``{name, provider}``.

This is where further providers come in: :func:`parse_bucket` decides what a text or an object
means, and everybody else sees :class:`BucketRef`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from dsort.spec.hints import FieldError, closest, describe

__all__ = ["BucketRef", "parse_bucket"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_OBJECT_STORES: Final = ("ais", "aws", "s3", "gcp", "gs", "azure", "az", "oci", "oc", "hdfs")
_WEB: Final = ("http", "https", "ht")
_PROVIDERS: Final = ("ais", "file")
_NOT_YET = "object stores are not supported yet by this version"
_ROOT_HINT = "a bare name is a directory under the data root (--root, DSORT_ROOT)"


@dataclass(frozen=True, slots=True)
class BucketRef:
    """A bucket, by where it is. Made by :func:`parse_bucket`, which checks it.

    ``scheme`` is ``""`` for a directory under the data root, with ``path`` relative to it, or
    ``"file"`` with an absolute ``path``. Paths are ``/``-separated, without ``..`` and empty
    parts, and as they are on disk: ``%20`` of a URI is a space here.
    """

    scheme: str
    path: str

    @property
    def uri(self) -> str:
        """The one canonical text of this bucket: ``images`` or ``file:///data/images``.

        Of a URI's characters only those are encoded that would mean something else (``% # ?``).
        """
        return f"{self.scheme}://{_encoded(self.path)}" if self.scheme else self.path

    def __str__(self) -> str:
        return self.uri


def parse_bucket(value: object) -> BucketRef:
    """The bucket that ``value`` (a text, or an object with ``name`` and ``provider``) means.

    ``FieldError`` (a ``ValueError`` with a hint) if it is none, or one of a provider that this
    version does not know how to reach.
    """
    if isinstance(value, BucketRef):
        return value
    if isinstance(value, str):
        return _parse_text(value)
    if isinstance(value, Mapping):
        return _parse_object(value)
    raise FieldError(f"must be a bucket, not {describe(value)}", 'e.g. "images"')


def _parse_object(fields: Mapping[object, object]) -> BucketRef:
    for key in fields:
        if key not in ("name", "provider", "namespace"):
            near = closest(str(key), ("name", "provider", "namespace"))
            hint = f'did you mean "{near}"?' if near else 'a bucket has "name" and "provider"'
            raise FieldError(f'unknown field "{key}"', hint)
    name, provider = fields.get("name"), fields.get("provider") or ""
    if not isinstance(name, str) or not isinstance(provider, str):
        wrong = "provider" if isinstance(name, str) else "name"
        raise FieldError(f'"{wrong}" must be text, not {describe(fields.get(wrong))}')
    namespace = fields.get("namespace")
    if any(namespace.values()) if isinstance(namespace, Mapping) else namespace:
        raise FieldError("namespaces of buckets are not supported")
    if not provider:
        return _parse_text(name)
    if provider == "file":
        return _parse_text(name if "://" in name else f"file://{_encoded(name)}")
    if provider == "ais":
        return _bare(name)
    if provider in _OBJECT_STORES or provider in _WEB:
        raise FieldError(f'provider "{provider}": {_NOT_YET}')
    near = closest(provider, _PROVIDERS + _OBJECT_STORES)
    hint = f'did you mean "{near}"?' if near else f"known here: {', '.join(_PROVIDERS)}"
    raise FieldError(f'unknown provider "{provider}"', hint)


def _parse_text(text: str) -> BucketRef:
    match = _SCHEME.fullmatch(text)
    if match is None:
        return _bare(text)
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        if rest.startswith("localhost/"):
            rest = rest.removeprefix("localhost")
        if not rest.startswith("/"):
            raise FieldError(f'"{text}" is not absolute', f'e.g. "file:///{rest}"')
        if "#" in rest or "?" in rest:
            raise FieldError(f'"{text}" has a query or a fragment', "write # as %23 and ? as %3F")
        return BucketRef("file", "/" + _clean_path(_decoded(rest, text), text))
    if scheme == "ais":
        raise FieldError(f'"{text}": {_NOT_YET}', f'write the bare name "{rest}"; {_ROOT_HINT}')
    if scheme in _OBJECT_STORES or scheme in _WEB:
        raise FieldError(f'"{text}": {_NOT_YET}')
    raise FieldError(f'"{text}" has an unknown scheme', 'e.g. "images" or "file:///data/images"')


def _bare(name: str) -> BucketRef:
    if not name:
        raise FieldError("missing bucket name", 'e.g. "images" or "file:///data/images"')
    if name.startswith("/"):
        raise FieldError(f'"{name}" is absolute', f'write "file://{name}"; {_ROOT_HINT}')
    if ":" in name or name.startswith("~"):
        raise FieldError(f'"{name}" is no bucket name', 'a path is written "file:///data/images"')
    if name in (".", "./"):
        return BucketRef("", ".")  # the data root itself
    path = _clean_path(name, name)
    if path.startswith("."):
        raise FieldError(f'"{name}" is reserved: bucket names do not begin with a dot')
    return BucketRef("", path)


def _encoded(path: str) -> str:
    return path.replace("%", "%25").replace("#", "%23").replace("?", "%3F")


def _decoded(path: str, text: str) -> str:
    try:
        return unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise FieldError(f'"{text}" is not UTF-8') from None


def _clean_path(path: str, text: str) -> str:
    parts = [part for part in path.split("/") if part]
    if not parts:
        raise FieldError(f'"{text}" names no directory')
    if ".." in parts or "." in parts:
        raise FieldError(f'"{text}" has a "." or ".." part', _ROOT_HINT)
    if not path.isprintable():
        raise FieldError(f"{text!r} contains characters that cannot be printed")
    return "/".join(parts)
