"""The stores that dsort supports: :class:`Store`, and the one table of schemes and providers.

To add a store, subclass :class:`Store`, and name the class in the entry points of your package,
group ``dsort.stores``: then specs, commands, settings and workers accept its URIs. Entry points are
read when a scheme appears that is not one of dsort's own. There is no other list of stores.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from dsort.errors import InvariantError
from dsort.installation import needing
from dsort.naming.names import closest
from dsort.registry import Registry
from dsort.storage.hub_address import HUB_WRITE_HINT, checked_dataset
from dsort.storage.ref import (
    SECRET_HINT,
    BucketRef,
    BucketTextError,
    checked_host,
    decoded,
    has_user,
    joined_path,
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
"""The bucket names that servers with an endpoint of their own allow at most."""
_NAME_RULE: Final = "bucket names have letters, digits, dots, hyphens and underscores"

_SCHEME = r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)"
_ALMOST = r"([A-Za-z][A-Za-z0-9]*)(?::/?|//|:///+)([^/:].*)?"


class Store:
    """One kind of store: the names of its buckets, and how a bucket is opened.

    ``schemes``: those of its URIs, the usual one first. ``provider``: AIStore's name for it.
    ``aliases``: other schemes that people write. ``reach``: those of ``endpoint_url``, ``region``
    and ``profile`` that the store uses. ``is_read_only``: its buckets cannot be written;
    ``write_hint``: the place to write to instead. ``is_listed``: its buckets can be listed.
    ``name_pattern``, ``name_rule``: valid names of buckets, and the rule in words.
    ``web_address``: matches hosts with its buckets; a group ``bucket`` may name the bucket.
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

        ``%20`` and the like are decoded. ``BucketTextError`` with a hint if it names none.
        """
        bucket, prefix = _split(uri)
        return store_ref(scheme, decoded(bucket, uri), decoded(prefix, uri), written=uri)

    def open(self, ref: BucketRef, limits: StoreLimits, transport: Transport) -> Bucket:
        """The bucket ``ref``; it need not exist. No request is made.

        Credentials are searched where the tools of the store search for them. Each request is made
        by ``transport.call``, as in ``ObjectBucket``, so that failed requests are tried again.
        """
        raise NotImplementedError

    def fixed(self, ref: BucketRef, limits: StoreLimits, transport: Transport) -> BucketRef:
        """The reference of the present state of the bucket ``ref``, in a store that keeps earlier
        states; ``ref`` itself in all others. A job reads its inputs by it."""
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

    def open(self, ref: BucketRef, limits: StoreLimits, transport: Transport) -> Bucket:
        # This import loads botocore, which jobs over directories do not need.
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
        with needing("clouds", f"what speaks with {ref.scheme}:// buckets"):
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
        "is no part of them, but of AZURE_STORAGE_ACCOUNT_NAME or the endpoint_url"
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
    """The bucket ``ref``, opened by its store: see :meth:`Store.open`. ``transport``: None for one
    by ``limits``."""
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
    """The usual scheme of the buckets of ``provider``, which may also be a scheme; None if it is
    unknown. It is None for the provider of web servers, too, which have two schemes."""
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

    ``%20`` and the like are decoded. ``BucketTextError`` with a hint if it names none. Not for
    directories.
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


def misspelt_uri(text: str) -> BucketTextError | None:
    """The error for a text that looks like a mistyped URI (``s3:/bucket``, ``gs:bucket``,
    ``s3//bucket``), or None for any other text."""
    match = re.fullmatch(_ALMOST, text, re.DOTALL)
    scheme = _usual(match[1]) if match else ""
    if match is None or scheme not in _known():
        return None
    rest = (match[2] or "").strip("/")
    if "@" in rest:
        return BucketTextError(f"{shown(text)} is no bucket name", SECRET_HINT)
    slashes = ":///" if scheme == "file" else "://"
    meant = f"{scheme}{slashes}{rest or 'bucket/prefix'}"
    return BucketTextError(f"{shown(text)} is no bucket name", f'did you mean "{meant}"?')


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
    """The scheme that ``written``, a scheme or an alias, stands for, in lower case."""
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
            "names are appended to it, so it cannot be a presigned URL"
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
