"""The stores that dsort supports: :class:`Store`, the one table of schemes and providers, and the
texts that name a bucket, in specs, in commands and on the wire.

To add a store, subclass :class:`Store`, and name the class in the entry points ``dsort.stores`` of
your package. dsort reads them when it meets a scheme that is not one of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from dsort.errors import InvariantError, SpecError
from dsort.installation import needing
from dsort.naming.names import closest
from dsort.registry import Registry
from dsort.storage.hub_address import HUB_WRITE_HINT, checked_dataset
from dsort.storage.ref import (
    PIPE,
    SECRET_HINT,
    STREAM,
    BucketRef,
    BucketTextError,
    checked_host,
    decoded,
    has_user,
    joined_path,
    refuse_internal,
    shown,
)

if TYPE_CHECKING:
    from dsort.storage.bucket import Bucket
    from dsort.storage.limit import StoreLimits
    from dsort.storage.transport import Transport


DIRECTORY_SCHEMES: Final = ("", "file")
"""The schemes of directories, which are no store: they are opened with the data root, without
limits and retries."""

NAME_PATTERN: Final = r"(?=.{1,255}$)[A-Za-z0-9_-](?:[A-Za-z0-9_-]|\.(?!\.))*"
"""The pattern of bucket names on a server with an endpoint of its own, whose rules may be milder
than those of the provider."""
_NAME_RULE: Final = "bucket names have letters, digits, dots, hyphens and underscores"

EXAMPLES: Final = 'e.g. "images", "file:///data/images" or "s3://bucket/images"'
PIPE_HINT: Final = 'write {"pipe": ["curl", "-sf", "https://host/shard.tar"]}'
_ROOT_HINT: Final = "a bare name is a directory under the data root (--root, DSORT_ROOT)"
_FORMS_HINT: Final = (
    "write file:///absolute/path, s3://bucket/prefix, or the name of a directory under the data "
    "root"
)

_SCHEME = r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)"
_ALMOST = r"([A-Za-z][A-Za-z0-9]*)(?::/?|//|:///+)([^/:].*)?"


class Store:
    """One kind of store: the names of its buckets, and how a bucket is opened.

    ``schemes``: the schemes of its URIs, the usual one first. ``provider``: AIStore's name for it.
    ``aliases``: other schemes that people write. ``reach``: those of ``endpoint_url``, ``region``
    and ``profile`` that the store uses. ``is_read_only``: its buckets cannot be written;
    ``write_hint``: the place to write to instead. ``is_listed``: its buckets can be listed.
    ``name_pattern``, ``name_rule``: valid names of buckets, and the rule in words. ``web_address``:
    matches hosts with its buckets; a group ``bucket`` may name the bucket.
    """

    schemes: tuple[str, ...]
    provider: str
    aliases: tuple[str, ...] = ()
    reach: tuple[str, ...] = ("endpoint_url",)
    is_read_only: bool = False
    write_hint: str = "to a directory, or s3://, gs://, az://, ais://"
    is_listed: bool = True
    name_pattern: str = NAME_PATTERN
    name_rule: str = _NAME_RULE
    web_address: str = ""

    def parse(self, scheme: str, uri: str) -> BucketRef:
        """The bucket of ``uri``, which begins with ``scheme://``, or with an alias of it.

        ``%20`` and the like are decoded. ``BucketTextError``, with a hint, if ``uri`` names no
        bucket.
        """
        bucket, prefix = _split(uri)
        return store_ref(scheme, decoded(bucket, uri), decoded(prefix, uri), written=uri)

    def load(self) -> None:
        """Load the libraries of the store, for all forks that this process will make."""

    def open(self, ref: BucketRef, limits: StoreLimits, transport: Transport) -> Bucket:
        """The bucket ``ref``; it need not exist. No request is made.

        Credentials come from the places where the tools of the store look for them. Each request is
        made by ``transport.call``, as in ``ObjectBucket``, so that failed requests are tried again.
        """
        raise NotImplementedError

    def fixed(self, ref: BucketRef, limits: StoreLimits, transport: Transport) -> BucketRef:
        """A reference to the present state of the bucket ``ref``, in a store that keeps earlier
        states; ``ref`` itself in all other stores. A job reads its inputs by this reference."""
        return ref


# --- dsort's own ---------------------------------------------------------------------------------


class _S3(Store):
    schemes = ("s3",)
    provider = "aws"
    aliases: tuple[str, ...] = ("aws",)
    reach = ("endpoint_url", "region", "profile")
    name_pattern = r"(?=.{3,63}$)[a-z0-9](?:[a-z0-9-]|\.(?!\.))*[a-z0-9]"
    name_rule = (
        "S3 bucket names have 3 to 63 characters: a-z, 0-9, dots and hyphens, with a letter or a "
        "digit at both ends"
    )
    web_address = r"(?:(?P<bucket>.+)\.)?s3(?:[.-][a-z0-9.-]*)?\.amazonaws\.com(?:\.cn)?"

    def load(self) -> None:
        # Jobs over directories do not need it.
        import dsort.storage.s3.bucket  # noqa: F401

    def open(self, ref: BucketRef, limits: StoreLimits, transport: Transport) -> Bucket:
        from dsort.storage.s3.bucket import S3Bucket

        return S3Bucket(ref, limits, transport)


class _AIStore(_S3):
    """AIStore by its S3 interface, whose endpoint has to be given."""

    schemes = ("ais",)
    provider = "ais"
    aliases = ()
    name_pattern = NAME_PATTERN
    name_rule = _NAME_RULE
    web_address = ""

    def open(self, ref: BucketRef, limits: StoreLimits, transport: Transport) -> Bucket:
        if not ref.endpoint_url:
            raise InvariantError(f"bucket {ref.uri} has no endpoint")
        return super().open(ref, limits, transport)


class _ObstoreStore(Store):
    """Stores that the library obstore supports."""

    def open(self, ref: BucketRef, limits: StoreLimits, transport: Transport) -> Bucket:
        # This import loads obstore, which jobs over directories do not need.
        with needing("clouds", f"the library for {ref.scheme}:// buckets"):
            from dsort.storage.obstore import ObstoreBucket

        return ObstoreBucket.of(ref, limits, transport)


class _GoogleCloud(_ObstoreStore):
    schemes = ("gs",)
    provider = "gcp"
    aliases = ("gcp", "gcs")
    name_pattern = r"(?=.{3,222}$)[a-z0-9](?:[a-z0-9_-]|\.(?!\.))*[a-z0-9]"
    name_rule = (
        "GCS bucket names have 3 to 63 characters: a-z, 0-9, dots, hyphens and underscores, with a "
        "letter or a digit at both ends"
    )
    web_address = r"(?:(?P<bucket>.+)\.)?storage\.googleapis\.com"


class _Azure(_ObstoreStore):
    schemes = ("az",)
    provider = "azure"
    aliases = ("azure",)
    name_pattern = r"\$(?:root|web|logs)|(?=.{3,63}$)[a-z0-9](?:-?[a-z0-9])+"
    name_rule = (
        "Azure container names have 3 to 63 characters: a-z, 0-9 and single hyphens; the account "
        "belongs in AZURE_STORAGE_ACCOUNT_NAME or the endpoint_url, not in the name"
    )
    web_address = r"[a-z0-9]+\.(?:blob|dfs)\.core\.windows\.net"


class _Hub(Store):
    """Datasets of the Hugging Face Hub."""

    schemes = ("hf",)
    provider = "hf"
    is_read_only = True
    write_hint = HUB_WRITE_HINT

    def parse(self, scheme: str, uri: str) -> BucketRef:
        kind, rest = _split(uri)
        path = joined_path(decoded(kind, uri), decoded(rest, uri), uri)
        return BucketRef(scheme, checked_dataset(path, rest, uri))

    def open(self, ref: BucketRef, limits: StoreLimits, transport: Transport) -> Bucket:
        # This import loads urllib3, which jobs over directories do not need.
        from dsort.storage.hub import HubBucket

        return HubBucket(ref, limits, transport)

    def fixed(self, ref: BucketRef, limits: StoreLimits, transport: Transport) -> BucketRef:
        from dsort.storage.hub import HubBucket

        return HubBucket(ref, limits, transport).at_commit()


class _Web(_ObstoreStore):
    """Web servers: a host and a prefix."""

    schemes = ("http", "https")
    provider = "ht"
    reach = ()
    is_read_only = True
    is_listed = False

    def parse(self, scheme: str, uri: str) -> BucketRef:
        host, prefix = _split(uri, is_web=True)
        return BucketRef(scheme, joined_path(checked_host(host, uri), decoded(prefix, uri), uri))


STORES: Final[Registry[Store]] = Registry(
    "dsort.stores",
    lambda store: store.schemes,
    (_S3(), _GoogleCloud(), _Azure(), _AIStore(), _Hub(), _Web()),
    make=lambda found: found(),
    reserved=DIRECTORY_SCHEMES,
)
"""The stores by scheme. A package names the class of a store in its entry points."""


def open_object_bucket(
    ref: BucketRef, limits: StoreLimits, transport: Transport | None = None
) -> Bucket:
    """The bucket ``ref``, opened by its store: see :meth:`Store.open`. ``transport``: if None, it
    is made from ``limits``."""
    from dsort.storage.transport import Transport

    store = store_of(ref.scheme)
    if store is None:
        raise InvariantError(f"bucket {ref.uri} is not in an object store")
    return store.open(ref, limits, transport or Transport(limits))


# --- questions -----------------------------------------------------------------------------------


def stores() -> list[Store]:
    """All registered stores."""
    return list(dict.fromkeys(STORES.values()))


def store_of(scheme: str) -> Store | None:
    """The store whose URIs have ``scheme``; None for directories and unknown schemes."""
    return None if scheme in DIRECTORY_SCHEMES else STORES.find(scheme)


def provider_of(scheme: str) -> str:
    """AIStore's name for the provider of buckets with ``scheme``. For a directory under the data
    root it is ``ais``; an unknown scheme is its own provider."""
    store = store_of(scheme)
    return store.provider if store is not None else scheme or "ais"


def scheme_of(provider: str) -> str | None:
    """The usual scheme of the buckets of ``provider``, which may also be a scheme. None if
    ``provider`` is unknown, and for the provider of web servers, because these have two schemes."""
    if provider not in STORES and provider not in {each.provider for each in stores()}:
        STORES.load_installed()
    for scheme, store in STORES.items():
        if provider == scheme or (provider == store.provider and len(store.schemes) == 1):
            return scheme
    return None


# --- URIs ----------------------------------------------------------------------------------------


def split_scheme(text: str) -> tuple[str, str] | None:
    """(scheme, rest) of ``scheme://rest``, or None. The scheme is in lower case, and aliases
    (``aws``, ``gcp``, ``azure``) are replaced by the scheme that dsort writes."""
    match = re.fullmatch(_SCHEME, text, re.DOTALL)
    return (_usual(match[1]), match[2]) if match else None


def parse_store_uri(text: str) -> BucketRef:
    """The bucket that a URI such as ``s3://bucket/prefix`` or ``https://host/prefix`` names.

    ``%20`` and the like are decoded. ``BucketTextError`` with a hint if ``text`` names no bucket.
    Not for directories.
    """
    scheme, _ = split_scheme(text) or ("", text)
    store = store_of(scheme)
    if store is None:
        raise _unknown_scheme(scheme, text)
    return store.parse(scheme, text)


def store_ref(
    scheme: str,
    bucket: str,
    prefix: str,
    *,
    endpoint_url: str = "",
    written: str = "",
) -> BucketRef:
    """The reference of ``bucket`` in an object store, and of ``prefix`` in it, both decoded.

    ``written``: the text of the user, for messages. A server with an endpoint of its own may have
    other rules for names than the provider, so only the mildest rules apply. ``BucketTextError`` if
    a name is invalid.
    """
    text = written or f"{scheme}://{bucket}"
    store = STORES[scheme]
    pattern, rule = (
        (NAME_PATTERN, _NAME_RULE) if endpoint_url else (store.name_pattern, store.name_rule)
    )
    if not re.fullmatch(pattern, bucket):
        raise BucketTextError(f"{shown(text)}: no bucket can be called {shown(bucket)}", rule)
    path = joined_path(bucket, prefix, text)
    return BucketRef(scheme, path, endpoint_url)


def object_store_behind(ref: BucketRef) -> str | None:
    """The URI (``s3://``, ``gs://`` or ``az://``) of the bucket with the web address ``ref``, or
    None.

    For hints: over the web, a bucket can only be read.
    """
    host, _, path = ref.path.partition("/")
    for store in stores():
        match = re.fullmatch(store.web_address, host) if store.web_address else None
        if match:
            bucket = match.groupdict().get("bucket")
            rest = "/".join(filter(None, (bucket, path)))
            return BucketRef(store.schemes[0], rest).uri if rest else None
    return None


def _known() -> list[str]:
    return ["file", *STORES]


def _usual(written: str) -> str:
    """The scheme in lower case for ``written``, which is a scheme or an alias."""
    lower = written.lower()
    if store_of(lower) is not None:
        return lower
    return next((store.schemes[0] for store in stores() if lower in store.aliases), lower)


def _split(text: str, *, is_web: bool = False) -> tuple[str, str]:
    """(bucket or host, prefix) of a URI, not yet decoded."""
    scheme, rest = split_scheme(text) or ("", text)
    bucket, _, prefix = rest.partition("/")
    if has_user(bucket, rest):
        raise BucketTextError(f"{shown(text)} has a user or a password in it", SECRET_HINT)
    if "?" in rest or "#" in rest:
        raise BucketTextError(
            f"{shown(text)} has a query or a fragment",
            "names of shards are appended to the URL, so it cannot be presigned"
            if is_web
            else "write # as %23 and ? as %3F",
        )
    if not bucket:
        what = "host" if is_web else "bucket"
        meant = prefix.strip("/") or f"{what}/prefix"
        raise BucketTextError(f"{shown(text)} names no {what}", f'write "{scheme}://{meant}"')
    return bucket, prefix


def _unknown_scheme(scheme: str, text: str) -> BucketTextError:
    known = _known()
    near = closest(scheme, known)
    every = f"known: {' '.join(f'{each}://' for each in known)}"
    if scheme in ("ht", "oc", "oci", "hdfs"):
        return BucketTextError(f"{shown(text)}: {scheme}:// is not supported", every)
    hint = f'did you mean "{near}://"?' if near else every
    return BucketTextError(f"{shown(text)} has an unknown scheme", hint)


# --- texts that name a bucket -------------------------------------------------------------------


def parse_address(uri: str) -> BucketRef:
    """The bucket that a text outside of specs names: a URI, or a directory under the data root,
    which may have any name. ``SpecError`` for any other text."""
    try:
        return parse_text(uri, any_directory=True)
    except BucketTextError as error:
        raise SpecError(f"bucket {error}", hint=error.hint or _FORMS_HINT) from None


def parse_text(text: str, *, any_directory: bool = False) -> BucketRef:
    """The bucket that ``text`` names: a URI, a directory under the data root, or ``-`` for standard
    input and output. ``BucketTextError`` if ``text`` names no bucket.

    ``any_directory``: directories may have names that specs do not allow, such as names that are
    not UTF-8, and ``-`` is the name of a directory.
    """
    if text == "-" and not any_directory:
        return BucketRef(STREAM, text)
    if text.startswith(f"{PIPE}:"):
        raise BucketTextError(
            f"{shown(text)}: a program is written as a list of words, not as one text that a "
            "shell would split",
            PIPE_HINT,
        )
    written = split_scheme(text)
    if written is None:
        return _any_name(text) if any_directory else bare_name(text)
    scheme, rest = written
    if scheme != "file":
        return parse_store_uri(text)
    if rest.startswith("localhost/"):
        rest = rest.removeprefix("localhost")
    if not rest.startswith("/"):
        raise BucketTextError(f'"{text}" is not absolute', f'e.g. "file:///{rest}"')
    if any_directory:
        return BucketRef("file", _whole(unquote(rest, errors="surrogateescape"), text))
    if "#" in rest or "?" in rest:
        raise BucketTextError(f'"{text}" has a query or a fragment', "write # as %23 and ? as %3F")
    return directory_at(decoded(rest, text), text)


def directory_at(path: str, text: str) -> BucketRef:
    """The directory at the absolute ``path``, in a spec. ``text``: for messages."""
    if not path.startswith("/"):
        raise BucketTextError(f'"{text}" is not absolute', f'e.g. "file:///{path}"')
    return BucketRef("file", "/" + clean_path(path, text))


def bare_name(name: str) -> BucketRef:
    """The directory ``name`` under the data root, in a spec."""
    if not name:
        raise BucketTextError("missing bucket name", EXAMPLES)
    if name.startswith("/"):
        raise BucketTextError(f'"{name}" is absolute', f'write "file://{name}"; {_ROOT_HINT}')
    _refuse_misspelt(name)
    if ":" in name or name.startswith("~"):
        hint = 'a path is written "file:///data/images"'
        raise BucketTextError(f"{shown(name)} is no bucket name", hint)
    if name in (".", "./"):
        return BucketRef("", ".")  # the data root itself
    path = clean_path(name, name)
    if path.startswith("."):
        raise BucketTextError(f'"{name}" is reserved: bucket names do not begin with a dot')
    return BucketRef("", path)


def clean_path(path: str, text: str) -> str:
    """``path`` without empty parts. ``BucketTextError``, which quotes ``text``, for invalid
    parts."""
    parts = [part for part in path.split("/") if part]
    if not parts:
        raise BucketTextError(f'"{text}" names no directory')
    if ".." in parts or "." in parts:
        raise BucketTextError(f'"{text}" has a "." or ".." part', _ROOT_HINT)
    if not path.isprintable():
        raise BucketTextError(f"{text!r} contains characters that cannot be printed")
    refuse_internal("/".join(parts), text)
    return "/".join(parts)


def _any_name(name: str) -> BucketRef:
    _refuse_misspelt(name)
    path = Path(name)
    if not name or ":" in name or path.is_absolute() or ".." in path.parts:
        raise BucketTextError(
            f"{name!r} is not the name of a directory under the data root",
            f"write {path.as_uri()}" if path.is_absolute() else "",
        )
    return BucketRef("", _whole(name, name))


def _whole(path: str, text: str) -> str:
    if "\0" in path:
        raise BucketTextError(f"{text!r} has a zero byte in it", _FORMS_HINT)
    return path


def _refuse_misspelt(text: str) -> None:
    """``BucketTextError`` for a text that looks like a mistyped URI (``s3:/bucket``, ``gs:bucket``,
    ``s3//bucket``)."""
    match = re.fullmatch(_ALMOST, text, re.DOTALL)
    scheme = _usual(match[1]) if match else ""
    if match is None or scheme not in _known():
        return
    rest = (match[2] or "").strip("/")
    if "@" in rest:
        raise BucketTextError(f"{shown(text)} is no bucket name", SECRET_HINT)
    slashes = ":///" if scheme == "file" else "://"
    meant = f"{scheme}{slashes}{rest or 'bucket/prefix'}"
    raise BucketTextError(f"{shown(text)} is no bucket name", f'did you mean "{meant}"?')
