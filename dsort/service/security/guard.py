"""Whether a spec that came over the network keeps to what the operator allows.

:class:`SpecPolicy` holds what the operator allows. A spec is parsed before, which checks its
syntax. Here it is checked where it leads: buckets, directories behind links, servers, files of key
maps, names. What can change between this check and the job is checked again by the job, which gets
``SpecPolicy.fetch_policy()``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from dsort.errors import ForbiddenError, SpecError, SpecProblem
from dsort.job.hooks import hooks_of, unknown_commands
from dsort.keymap.fetch import shown_location
from dsort.naming.inputs import parse_input_template
from dsort.naming.names import INTERNAL_PART, check_object_name, check_output_name, shortened
from dsort.naming.patterns import glob_prefix, has_wildcard, wildcard_match
from dsort.naming.templates import parse_template
from dsort.options import RunOptions
from dsort.service.config import ServiceConfig
from dsort.service.security.spec_text import (
    TextLimits,
    bounded_problems,
    check_fields,
    parse_text,
)
from dsort.service.security.uris import joined_uris
from dsort.settings import Settings, resolve_ref
from dsort.spec.inputs import Source
from dsort.spec.model import JobSpec
from dsort.spec.outputs import Target
from dsort.storage.network_policy import FetchPolicy, check_host_pattern
from dsort.storage.ref import SECRET_HINT, STREAM, BucketRef
from dsort.storage.registry import split_scheme, store_of

__all__ = [
    "Operated",
    "SpecPlaces",
    "SpecPolicy",
    "TextLimits",
    "bounded_problems",
    "check_bucket",
    "check_fields",
    "check_hooks",
    "check_object",
    "check_spec",
    "host_problems",
    "parse_text",
    "place_of",
    "policy_of",
]

_FILE: Final = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecPolicy:
    """What a spec may say. Made once; ``SpecError`` for patterns that are none.

    ``root``: the directory that bare bucket names are under. ``allow``: what else may be read and
    written, as patterns of URIs: ``s3://team-*``, ``s3://bucket/train``, ``https://data.example``,
    ``file:///mnt/data``. ``*`` is any text, ``?`` one character; a wildcard in the bucket does not
    reach beyond it, hosts have none, and what is under an allowed place is allowed, too.
    ``ekm_allow_hosts``, ``ekm_allow_private``: where external key maps may come from; see
    :class:`~dsort.storage.network_policy.FetchPolicy`. ``denied``: directories under the allowed
    ones that are nobody's business (where the service keeps its state). ``settings``: how stores
    are reached.
    """

    root: Path
    allow: tuple[str, ...] = ()
    ekm_allow_hosts: tuple[str, ...] = ()
    ekm_allow_private: bool = False
    denied: tuple[Path, ...] = ()
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        problems = []
        for pattern in self.allow:
            written = split_scheme(pattern)
            if written is None or not (written[0] == _FILE or store_of(written[0])):
                hint = 'e.g. "s3://team-*", "file:///mnt/data" or "https://data.example.com"'
                problems.append(SpecProblem("allow", f'"{pattern}" is no pattern of URIs', hint))
            elif written[0] == _FILE and not written[1].startswith("/"):
                problems.append(SpecProblem("allow", f'"{pattern}" is not absolute'))
            elif _is_web(written[0]) and has_wildcard(written[1].partition("/")[0]):
                hint = "a web server may send its readers on to anywhere: name those that you trust"
                problems.append(SpecProblem("allow", f'"{pattern}" names no host', hint))
        problems += host_problems("ekm_allow_host", self.ekm_allow_hosts)
        if os.path.realpath(self.root) in map(os.path.realpath, self.denied):
            hint = "give those a directory of their own: --state-dir, --scratch"
            text = "is where the service keeps its state, or the scratch of its jobs"
            problems.append(SpecProblem("root", text, hint))
        if problems:
            raise SpecError(problems)

    def fetch_policy(self) -> FetchPolicy:
        """The same for the process that runs the job: a plain value (``RunOptions.fetch``)."""
        root = os.path.realpath(self.root)
        roots: list[str] = [root]
        patterns: list[str] = []
        for pattern in self.allow:
            scheme, rest = split_scheme(pattern) or ("", "")
            if scheme != _FILE:
                continue
            path = unquote(rest).removesuffix("/*").rstrip("/") or "/"
            (patterns if has_wildcard(path) else roots).append(_real_pattern(path))
        denied = [os.path.realpath(each) for each in self.denied]
        return FetchPolicy(
            roots=tuple(roots),
            patterns=tuple(patterns),
            # The root may well be in the state directory: then it is not meant.
            denied=tuple(each for each in denied if not f"{root}/".startswith(f"{each}/")),
            hosts=self.ekm_allow_hosts,
            allow_private=self.ekm_allow_private,
        )

    def allows_store(self, ref: BucketRef) -> bool:
        """Whether a bucket that is no directory is under one of the patterns."""
        return any(_is_under(pattern, ref) for pattern in self.allow)


def host_problems(field: str, hosts: Iterable[str]) -> list[SpecProblem]:
    """What is wrong with patterns of web servers; see ``FetchPolicy.hosts``."""
    problems = []
    for host in hosts:
        try:
            check_host_pattern(host)
        except ValueError as error:
            hint = 'e.g. "maps.example.com", "maps.example.com:8443" or "*.example.com:*"'
            problems.append(SpecProblem(field, f'"{host}" {error}', hint))
    return problems


class Operated(Protocol):
    """What an operator says of specs; a service's configuration, and what its jobs are handed."""

    @property
    def run(self) -> RunOptions: ...
    @property
    def state_dir(self) -> Path: ...
    @property
    def allow(self) -> tuple[str, ...]: ...
    @property
    def ekm_allow_hosts(self) -> tuple[str, ...]: ...
    @property
    def ekm_allow_private(self) -> bool: ...


def policy_of(operated: Operated) -> SpecPolicy:
    """The policy of a service: its state and its scratch are nobody's business, wherever they
    are."""
    run = operated.run
    private = (operated.state_dir, *filter(None, [run.scratch]))
    return SpecPolicy(
        root=run.root,
        allow=operated.allow,
        ekm_allow_hosts=operated.ekm_allow_hosts,
        ekm_allow_private=operated.ekm_allow_private,
        denied=private,
        settings=run.settings,
    )


def _real_pattern(path: str) -> str:
    """``path`` with the links before its first wildcard resolved."""
    parts = path.split("/")
    literal = next((n for n, part in enumerate(parts) if has_wildcard(part)), len(parts))
    real = os.path.realpath("/".join(parts[:literal]) or "/")
    return "/".join((real.rstrip("/"), *parts[literal:])) or "/"


def _is_web(scheme: str) -> bool:
    return scheme in ("http", "https")


def _is_under(pattern: str, ref: BucketRef) -> bool:
    scheme, rest = split_scheme(pattern) or ("", "")
    if scheme != ref.scheme:
        return False
    bucket, _, prefix = unquote(rest).partition("/")
    ref_bucket, _, ref_prefix = ref.path.partition("/")
    if _is_web(scheme):
        bucket = bucket.lower()
    if not wildcard_match(bucket, ref_bucket):
        return False
    prefix = prefix.rstrip("/")
    return (
        not prefix
        or wildcard_match(prefix, ref_prefix)
        or wildcard_match(f"{prefix}/*", ref_prefix)
    )


SHAPES_MAX: Final = 10_000
INPUT_NAME_BYTES_MAX: Final = 1 << 30
DIRECTORIES_MAX: Final = 1_000
_OWN: Final = f"is {INTERNAL_PART}, where dsort keeps its own files"
_OUTSIDE: Final = "is not under a directory that this service may use"


@dataclass(frozen=True, slots=True)
class SpecPlaces:
    """What a checked spec touches, in the words of tokens' patterns and of claims: canonical URIs,
    directories with links resolved. ``input_uri``, ``output_uri``: see ``uris.joined_uris``; the
    main one of the outputs is the first. ``output_uris``: by place (see
    ``storage.output_buckets``). ``keymap_uri``: a key map's file or URL, without secrets."""

    input_uri: str
    output_uri: str
    keymap_uri: str | None
    output_uris: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Found:
    """What is wrong: with the spec, and with its being allowed."""

    wrong: list[SpecProblem]
    forbidden: list[SpecProblem]


def check_spec(spec: JobSpec, policy: SpecPolicy) -> SpecPlaces:
    """Where ``spec`` leads, if it may.

    ``SpecError`` with all that no spec from the network may say, else ``ForbiddenError`` with all
    that this service does not allow.
    """
    found, fetch = _Found([], []), policy.fetch_policy()
    inputs = [
        _checked_bucket(f"{source.path}input_bck", source.bucket, policy, fetch, found)
        for source in spec.sources
    ]
    outputs = {"": _checked_bucket("output_bck", spec.output_bck, policy, fetch, found)}
    for target in spec.targets:
        if target.bucket is not None:
            path = f"{target.path}output_bck"
            outputs[target.place] = _checked_bucket(path, target.bucket, policy, fetch, found)
    _check_names(spec, found)
    if spec.ingest is not None and spec.ingest.pipes:
        message = "a recipe that runs programs is not for specs that come over the network"
        hint = "run such a job with `dsort ingest` on the machine itself"
        found.forbidden.append(SpecProblem("ingest.pipes", message, hint))
    if not found.wrong:
        _check_links(spec, policy, fetch, found)
    keymap = _checked_keymap(spec.ekm_file, policy, fetch, found) if spec.ekm_file else None
    _raise_found(found)
    return SpecPlaces(joined_uris(inputs), joined_uris([*outputs.values()]), keymap, outputs)


def _raise_found(found: _Found) -> None:
    with bounded_problems():
        if found.wrong:
            raise SpecError([*found.wrong, *found.forbidden])
    if found.forbidden:
        messages = list(dict.fromkeys(found.forbidden))[: TextLimits().problems_max]
        hints = dict.fromkeys(each.hint for each in messages if each.hint)
        raise ForbiddenError("\n".join(map(str, messages)), hint="; ".join(hints))


def check_bucket(ref: BucketRef, policy: SpecPolicy, fetch: FetchPolicy | None = None) -> str:
    """The canonical URI of a bucket that a request names, if it may be used. ``fetch``: of the
    policy, for who asks of many. ``SpecError``, ``ForbiddenError``."""
    found = _Found([], [])
    place = _checked_bucket("bucket", ref, policy, fetch or policy.fetch_policy(), found)
    _raise_found(found)
    return place


def check_object(ref: BucketRef, name: str, policy: SpecPolicy) -> str:
    """The canonical URI of the bucket of an object that a request names, if it may be used.
    ``SpecError``, ``ForbiddenError``."""
    found, fetch = _Found([], []), policy.fetch_policy()
    place = _checked_bucket("bucket", ref, policy, fetch, found)
    _check_name("name", name, check_object_name, found)
    inside = name.rpartition("/")[0]
    if not found.wrong and ref.is_directory and inside:
        real = os.path.realpath(_directory(ref, policy.root) / inside)
        if not fetch.allows_path(real) or INTERNAL_PART in real.split("/"):
            found.forbidden.append(SpecProblem("name", f'"{shortened(inside)}" {_OUTSIDE}'))
    _raise_found(found)
    return place


def check_hooks(spec: JobSpec, config: ServiceConfig) -> None:
    """``SpecError`` if a hook of ``spec`` names a command that the service does not have,
    ``ForbiddenError`` if it calls a server that webhooks may not be on."""
    problems = unknown_commands(spec, dict(config.run.settings.commands))
    if problems:
        raise SpecError(problems)
    for name, hook in hooks_of(spec.on_success, spec.on_failure).items():
        parts = urlsplit(hook.get("webhook", ""))
        port = parts.port or {"https": 443}.get(parts.scheme, 80)
        if parts.hostname and not config.webhook_policy.allows_host(
            parts.scheme, parts.hostname, port
        ):
            raise ForbiddenError(
                f"{name}.webhook: {parts.hostname}:{port} is no server that this service may call",
                hint="its operator can allow it: dsort serve --webhook-allow-host",
            )


def place_of(ref: BucketRef, root: Path) -> str:
    """The canonical URI of a bucket: of a directory, ``file://`` and its real path."""
    if not ref.is_directory:
        return replace(ref, endpoint_url="", region="", profile="").uri
    return BucketRef("file", os.path.realpath(_directory(ref, root))).uri


def _directory(ref: BucketRef, root: Path) -> Path:
    return Path(ref.path) if ref.scheme else root / ref.path


# --- buckets -------------------------------------------------------------------------------------


def _checked_bucket(
    field: str, ref: BucketRef, policy: SpecPolicy, fetch: FetchPolicy, found: _Found
) -> str:
    place = place_of(ref, policy.root)
    if ref.is_stream:
        what = "standard input and output are" if ref.scheme == STREAM else "programs are"
        hint = "run such a job with `dsort start` on the machine itself"
        message = f"{what} not for specs that come over the network"
        found.forbidden.append(SpecProblem(field, message, hint))
        return place
    if ref.is_directory:
        real = os.path.realpath(_directory(ref, policy.root))
        if INTERNAL_PART in ref.path.split("/"):
            found.wrong.append(SpecProblem(field, f'"{ref.uri}" {_OWN}'))
        elif not fetch.allows_path(real) or INTERNAL_PART in real.split("/"):
            hint = "a bare name is a directory under the service's data root"
            found.forbidden.append(SpecProblem(field, f'"{ref.uri}" {_OUTSIDE}', hint))
        return place
    if not ref.is_plain and not _is_as_set_up(ref, policy):
        hint = "leave endpoint_url, region and profile out: the service knows how to reach it"
        message = f'"{ref.uri}": the way to a store is for the operator to say'
        found.forbidden.append(SpecProblem(field, message, hint))
    if not policy.allows_store(ref):
        message = f'"{ref.uri}" is not among the buckets that this service may use'
        found.forbidden.append(SpecProblem(field, message, "its operator can allow it"))
    return place


def _is_as_set_up(ref: BucketRef, policy: SpecPolicy) -> bool:
    """Whether what the spec says of the way is what the settings say anyway."""
    plain = replace(ref, endpoint_url="", region="", profile="")
    try:
        return resolve_ref(plain, policy.settings) == resolve_ref(ref, policy.settings)
    except SpecError:
        return False


# --- names ---------------------------------------------------------------------------------------


def _output_templates(spec: JobSpec) -> Iterator[tuple[str, str]]:
    for target in spec.targets:
        if target.template is not None:
            yield "output_format", target.template
    for template in spec.ekm or ():
        yield "ekm", template
    if spec.ekm_default is not None:
        yield "ekm_default", spec.ekm_default


def _check_names(spec: JobSpec, found: _Found) -> None:
    """Names that lead to dsort's own files, out of their bucket, or nowhere at all."""
    for path, template in _output_templates(spec):
        _check_name(path, parse_template(template).name(0), check_output_name, found)
    for source in spec.sources:
        field, inputs = f"{source.path}input_format", source.format
        if inputs.template is not None:
            _check_input_template(f"{field}.template", inputs.template, found)
        for name in inputs.objnames or ():
            _check_name(f"{field}.objnames", name, check_object_name, found)
        for path, text in (("prefix", inputs.prefix), ("glob", inputs.glob)):
            if text is not None:
                _check_name(f"{field}.{path}", text.removesuffix("/"), check_object_name, found)


def _check_input_template(path: str, text: str, found: _Found) -> None:
    template = parse_input_template(text)
    shapes = template.shape_count
    if shapes > SHAPES_MAX:
        found.wrong.append(
            SpecProblem(path, f"has {shapes:,} combinations of alternatives, over {SHAPES_MAX:,}")
        )
    elif template.count * max(map(len, template.first_names)) > INPUT_NAME_BYTES_MAX:
        hint = "name inputs by input_format.prefix or .glob, or in several jobs"
        found.wrong.append(SpecProblem(path, "stands for too many and too long names", hint))
    else:
        for name in template.shapes():
            _check_name(path, name, check_object_name, found)


def _check_name(path: str, name: str, check: Callable[[str], None], found: _Found) -> None:
    try:
        check(name)
    except ValueError as error:
        found.wrong.append(SpecProblem(path, str(error)))
        return
    if INTERNAL_PART in name.split("/"):
        found.wrong.append(SpecProblem(path, f'a part of "{shortened(name)}" {_OWN}'))


# --- links ---------------------------------------------------------------------------------------


def _check_links(spec: JobSpec, policy: SpecPolicy, fetch: FetchPolicy, found: _Found) -> None:
    """Directories inside a bucket that lead out of it, as far as the spec names them. What a
    listing finds is looked at by the job."""
    sides = [
        *((each.bucket, f"{each.path}input_format", _named_inputs(each)) for each in spec.sources),
        *(
            (target.bucket or spec.output_bck, "output_format", _named_outputs(spec, target))
            for target in spec.targets
        ),
    ]
    for ref, path, names in sides:
        if not ref.is_directory:
            continue
        bucket = _directory(ref, policy.root)
        directories = dict.fromkeys(name.rpartition("/")[0] for name in names)
        for inside in [each for each in directories if each][:DIRECTORIES_MAX]:
            if not fetch.allows_path(os.path.realpath(bucket / inside)):
                found.forbidden.append(SpecProblem(path, f'"{shortened(inside)}" {_OUTSIDE}'))


def _named_inputs(source: Source) -> Iterable[str]:
    inputs = source.format
    yield from inputs.objnames or ()
    if inputs.template is not None:
        yield from parse_input_template(inputs.template).shapes()
    if inputs.prefix is not None:
        yield inputs.prefix
    if inputs.glob is not None:
        yield glob_prefix(inputs.glob)


def _named_outputs(spec: JobSpec, target: Target) -> Iterable[str]:
    templates = [target.template] if target.template is not None else []
    if spec.has_key_map:
        templates = [template for _, template in _output_templates(spec)]
    for template in templates:
        yield parse_template(template).name(0)


# --- external key maps ---------------------------------------------------------------------------


def _checked_keymap(
    location: str, policy: SpecPolicy, fetch: FetchPolicy, found: _Found
) -> str | None:
    """Where the key map is, if it may be read; a name is looked up only by the job."""
    shown = shown_location(location)
    try:
        parts = urlsplit(location) if re.match(r"[A-Za-z]+://", location) else None
        port = parts.port if parts else None
    except ValueError:
        found.wrong.append(SpecProblem("ekm_file", f'"{shortened(shown)}" is no URL'))
        return None
    if parts is None or parts.scheme == "file":
        if parts is not None and parts.netloc not in ("", "localhost"):
            found.wrong.append(SpecProblem("ekm_file", "is a file of another machine"))
            return None
        path = unquote(parts.path, errors="surrogateescape") if parts else location
        return _checked_file(path, policy, fetch, found)
    host = parts.hostname or ""
    if "@" in parts.netloc:
        found.wrong.append(SpecProblem("ekm_file", "has a user or a password in it", SECRET_HINT))
    elif not host or "\\" in location or not location.isprintable():
        found.wrong.append(SpecProblem("ekm_file", f'"{shortened(shown)}" is no URL'))
    elif not fetch.allows_host(parts.scheme, host, port or (80 if parts.scheme == "http" else 443)):
        found.forbidden.append(
            SpecProblem(
                "ekm_file",
                f"this service does not fetch key maps from {shortened(parts.netloc)}",
                "its operator can allow the host, with its port if that is not the usual one; or "
                "use ekm",
            )
        )
    else:
        try:
            refusal = fetch.refusal_of_address(host)
        except ValueError:
            refusal = ""  # a name
        if refusal:
            found.forbidden.append(SpecProblem("ekm_file", refusal))
    return shown


def _checked_file(path: str, policy: SpecPolicy, fetch: FetchPolicy, found: _Found) -> str:
    if not path.isprintable():
        found.wrong.append(SpecProblem("ekm_file", f"{shortened(path)!a} cannot be printed"))
        return ""
    real = os.path.realpath(policy.root / path)
    if not fetch.allows_path(real) or INTERNAL_PART in real.split("/"):
        found.forbidden.append(SpecProblem("ekm_file", f'"{shortened(path)}" {_OUTSIDE}'))
    return BucketRef("file", real).uri
