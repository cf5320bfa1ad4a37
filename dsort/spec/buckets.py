"""Reads the bucket in a spec: ``images``, ``s3://bucket/prefix`` or ``{name, provider, ...}``.

:func:`parse_bucket` turns a text or an object into a :class:`~dsort.storage.ref.BucketRef`.
:func:`bucket_value` does the reverse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from dsort.errors import SpecProblem
from dsort.naming.names import closest
from dsort.spec.part import FieldError, describe
from dsort.storage.ref import (
    PIPE,
    SECRET_HINT,
    BucketRef,
    BucketTextError,
    checked_endpoint,
    is_secret_name,
    shown,
)
from dsort.storage.registry import (
    EXAMPLES,
    PIPE_HINT,
    bare_name,
    clean_path,
    directory_at,
    parse_store_uri,
    parse_text,
    provider_of,
    scheme_of,
    split_scheme,
    store_of,
    store_ref,
    stores,
)

_REACH: Final = ("endpoint_url", "region", "profile")
_FIELDS: Final = ("name", "provider", "prefix", *_REACH, "namespace")
_WEB: Final = "ht"
"""AIStore's word for the web. It needs a name that is a URL, whose scheme is http or https."""

_WORDS_MAX: Final = 1000


def _providers() -> list[str]:
    """The names of providers in a spec: AIStore's words, and the schemes of URIs."""
    named = [name for each in stores() for name in (each.provider, *each.schemes)]
    return list(dict.fromkeys(("ais", "file", *(name for name in named if name != _WEB), _WEB)))


BUCKET_SCHEMA: Final[Mapping[str, Any]] = {
    "anyOf": [
        {
            "type": "string",
            "minLength": 1,
            "description": "The name of a directory under the data root, or a URI: "
            "file:///directory, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, "
            "ais://bucket, or (to read only) hf://datasets/user/name/prefix, "
            "http(s)://host/prefix. '-': one shard on standard input, or on standard output.",
        },
        {
            "type": "object",
            "description": "The standard output of a program. The program writes one shard, or "
            "runs once for each name of input_format, which replaces '{shard}' in its arguments. "
            "Only for inputs, in specs of your own machine.",
            "properties": {
                "pipe": {
                    "type": "array",
                    "items": {"type": "string"},
                    "minItems": 1,
                    "maxItems": 1000,
                    "description": "The program and its arguments. No shell reads them.",
                    "examples": [["curl", "-sf", "https://host/train/{shard}"]],
                },
            },
            "required": ["pipe"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "description": "A bucket, and how to reach it. Credentials are never in a spec: they "
            "come from the environment, a profile or a role.",
            "properties": {
                "name": {
                    "type": "string",
                    "minLength": 1,
                    "description": "The bucket, a directory, or a URI as above.",
                },
                "provider": {
                    "type": "string",
                    "enum": ["", *_providers()],
                    "description": "The provider of the bucket. With ais, or without a provider, "
                    "a bare name is a directory under the data root, unless endpoint_url is set.",
                },
                "prefix": {
                    "type": "string",
                    "description": "Only objects under this prefix, which is written as in the "
                    "store, without encoding.",
                },
                "endpoint_url": {
                    "type": "string",
                    "description": "The address of the store, if it is not its provider's own.",
                    "examples": ["http://10.0.0.1:8333"],
                },
                "region": {"type": "string", "description": "The region of the bucket."},
                "profile": {
                    "type": "string",
                    "description": "The profile with the credentials, in the AWS configuration.",
                },
                "namespace": {
                    "type": "object",
                    "description": "Specs of AIStore may have it; it must be empty.",
                },
            },
            "required": ["name"],
            "additionalProperties": False,
        },
    ]
}
"""The JSON Schema of values that :func:`parse_bucket` accepts."""


def parse_bucket(value: object, *, ais_is_there: bool = False) -> BucketRef:
    """The bucket in ``value`` (a text, or an object with ``name`` and more).

    An object of provider ``ais`` is a bucket of AIStore if ``ais_is_there``, or if it has an
    ``endpoint_url``. Otherwise it is a directory under the data root, so that AIStore's specs can
    be tried out. ``FieldError`` (a ``ValueError`` with hints) lists everything that is wrong with
    ``value``. Its messages do not repeat values of fields that might hold a secret.
    """
    if isinstance(value, BucketRef):
        return value
    if not isinstance(value, (str, Mapping)):
        raise FieldError(f"must be a bucket, not {describe(value)}", EXAMPLES)
    try:
        return parse_text(value) if isinstance(value, str) else _parse_object(value, ais_is_there)
    except BucketTextError as error:
        raise FieldError(str(error), error.hint) from None


def bucket_value(ref: BucketRef) -> str | dict[str, Any]:
    """``ref`` as a spec writes it: a text, or an object if a text cannot express it.
    ``parse_bucket`` reverses it."""
    if ref.scheme == PIPE:
        return {PIPE: json.loads(ref.path)}
    if ref.is_plain:
        return ref.uri
    bucket, _, prefix = ref.path.partition("/")
    fields = {
        "name": bucket,
        "provider": provider_of(ref.scheme),
        "prefix": prefix,
        "endpoint_url": ref.endpoint_url,
        "region": ref.region,
        "profile": ref.profile,
    }
    return {name: value for name, value in fields.items() if value}


# --- the object form -----------------------------------------------------------------------------


def _parse_pipe(fields: Mapping[Any, object]) -> BucketRef:
    more = [str(name) for name in fields if name != PIPE]
    if more:
        text = f"cannot be combined with {PIPE}, which must be the only field"
        raise FieldError.of([SpecProblem(name, text) for name in more])
    given = fields[PIPE]
    words = list(given) if isinstance(given, (list, tuple)) else []
    are_words = all(isinstance(word, str) and "\0" not in word for word in words)
    if not words or not words[0] or not are_words or len(words) > _WORDS_MAX:
        text = "must be a program and its arguments, each a text"
        raise FieldError.of([SpecProblem(PIPE, text, PIPE_HINT)])
    return BucketRef(PIPE, json.dumps(words, ensure_ascii=False))


def _parse_object(fields: Mapping[Any, object], ais_is_there: bool) -> BucketRef:
    if PIPE in fields:
        return _parse_pipe(fields)
    given = {name: value for name, value in fields.items() if value is not None and value != ""}
    problems = [*_odd_fields(given)]
    texts: dict[str, str] = {}
    for name in _FIELDS[:-1]:
        value = given.get(name, "")
        if isinstance(value, str):
            texts[name] = value
        else:
            problems.append(SpecProblem(name, f"must be text, not {describe(value)}"))
            texts[name] = ""
    if not texts["name"] and "name" not in given:
        problems.append(SpecProblem("name", "is required", EXAMPLES))
    scheme = _scheme_of_provider(texts["provider"], problems)
    names_ais = ais_is_there or texts["endpoint_url"] or split_scheme(texts["name"])
    if scheme == "ais" and not names_ais:
        scheme = ""
    endpoint_url = _endpoint(texts["endpoint_url"], problems)
    ref = None
    if texts["name"] and scheme is not None:
        try:
            ref = _place(scheme, texts["name"], texts["prefix"], bool(texts["endpoint_url"]))
        except BucketTextError as error:
            problems.append(SpecProblem("name", str(error), error.hint))
    if ref is not None:
        problems += _without_meaning(ref, texts)
    if ref is None or problems:
        raise FieldError.of(problems)
    return BucketRef(ref.scheme, ref.path, endpoint_url, texts["region"], texts["profile"])


def _odd_fields(given: Mapping[Any, object]) -> list[SpecProblem]:
    problems = []
    for each in given:
        name = str(each)
        near = closest(name, _FIELDS)
        if name in _FIELDS:
            continue
        if is_secret_name(name):
            problems.append(SpecProblem(name, "does not belong in a spec", SECRET_HINT))
        else:
            hint = f'did you mean "{near}"?' if near else f"a bucket has {', '.join(_FIELDS)}"
            problems.append(SpecProblem(name, "unknown field", hint))
    namespace = given.get("namespace")
    if any(namespace.values()) if isinstance(namespace, Mapping) else namespace:
        problems.append(SpecProblem("namespace", "namespaces of buckets are not supported"))
    return problems


def _scheme_of_provider(provider: str, problems: list[SpecProblem]) -> str | None:
    if not provider:
        return ""
    name = provider.lower()
    scheme = name if name in ("file", _WEB) else scheme_of(name)
    if scheme is None:
        near = closest(provider, _providers())
        known = "known here: aws, gcp, azure, ais, file, http, https"
        hint = f'did you mean "{near}"?' if near else known
        problems.append(SpecProblem("provider", f'unknown provider "{provider}"', hint))
    return scheme


def _endpoint(text: str, problems: list[SpecProblem]) -> str:
    try:
        return checked_endpoint(text) if text else ""
    except BucketTextError as error:
        problems.append(SpecProblem("endpoint_url", str(error), error.hint))
        return ""


def _place(scheme: str, name: str, prefix: str, has_endpoint: bool) -> BucketRef:
    """The bucket, without the settings for access to it."""
    written = split_scheme(name)
    if written is not None:
        same = written[0] == scheme or (scheme == _WEB == provider_of(written[0]))
        if scheme and not same:
            raise BucketTextError(
                f"{shown(name)} contradicts the provider", "leave the provider out"
            )
        # A custom server may have other rules for names: the part before the prefix is kept
        # unchanged, and checked by the rules of such servers.
        store = store_of(written[0])
        if has_endpoint and store is not None and "endpoint_url" in store.reach:
            checked = parse_store_uri(f"ais://{written[1]}")
            return _under(BucketRef(written[0], checked.path), prefix)
        return _under(parse_text(name), prefix)
    if scheme == "file":
        ref = directory_at(name, name)
    elif scheme == _WEB:
        raise BucketTextError(f"{shown(name)} is no URL", 'write "https://host/prefix"')
    elif provider_of(scheme) == _WEB:
        ref = parse_store_uri(f"{scheme}://{name}")
    elif scheme == "":
        ref = bare_name(name)
    else:
        bucket, _, inside = name.partition("/")
        ref = store_ref(scheme, bucket, inside, endpoint_url="-" * has_endpoint)
    return _under(ref, prefix)


def _under(ref: BucketRef, prefix: str) -> BucketRef:
    """``ref`` with ``prefix``, which is written as in the store, without encoding."""
    if not prefix.strip("/"):
        return ref
    if ref.is_directory:
        inside = clean_path(prefix, prefix)
        return BucketRef(ref.scheme, inside if ref.path == "." else f"{ref.path}/{inside}")
    # Checked by the weakest rules, because the bucket itself has been checked.
    whole = store_ref("ais", "checked", prefix.lstrip("/"), written=prefix)
    return BucketRef(ref.scheme, f"{ref.path}/{whole.path.partition('/')[2]}")


def _without_meaning(ref: BucketRef, texts: Mapping[str, str]) -> list[SpecProblem]:
    where = "a directory" if ref.is_directory else f"{ref.scheme}://"
    store = store_of(ref.scheme)
    reach = store.reach if store is not None else ()
    hint = "" if ref.scheme else 'for a bucket of a store, set provider, e.g. to "aws"'
    return [
        SpecProblem(name, f"cannot be combined with {where}", hint)
        for name in _REACH
        if texts[name] and name not in reach
    ]
