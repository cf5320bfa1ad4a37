"""Checks that all places in a spec from the network (buckets, directories behind links, servers,
files) are allowed by the operator (:class:`~dsort.service.config.SpecPolicy`).

The parser has checked the syntax before. A place can change between this check and the job, so the
job checks it again, by ``SpecPolicy.fetch_policy()``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct, field
from msgspec.structs import replace

from dsort.errors import ForbiddenError, SpecError, SpecProblem
from dsort.keymap.fetch import path_in, scheme_of, shown_location
from dsort.naming.inputs import parse_input_template
from dsort.naming.names import (
    INTERNAL_PART,
    check_object_name,
    check_output_name,
    is_hidden,
    shortened,
)
from dsort.naming.patterns import FileLocation, glob_prefix
from dsort.naming.templates import parse_template
from dsort.results.hooks import hooks_of, unknown_commands
from dsort.service.config import ServiceConfig, SpecPolicy
from dsort.service.database.tables import joined_uris, paths_of
from dsort.service.security.spec_text import (
    TextLimits,
    bounded_problems,
)
from dsort.settings import resolve_ref
from dsort.spec.fields import located
from dsort.spec.inputs import Source
from dsort.spec.model import JobSpec
from dsort.spec.target import Target
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.ref import SECRET_HINT, STREAM, BucketRef

_FILE: Final = "file"


SHAPES_MAX: Final = 10_000
INPUT_NAME_BYTES_MAX: Final = 1 << 30
DIRECTORIES_MAX: Final = 1_000
_OWN: Final = f"is {INTERNAL_PART}, where dsort keeps its own files"
_ALLOW_HINT: Final = "its operator can allow it: `dsort serve --allow 's3://team-*'`"
_OUTSIDE: Final = "is not under a directory that this service may use"


class SpecPlaces(Struct, frozen=True):
    """The places in a checked spec, in the form that patterns of tokens and claims have: canonical
    URIs; in those of directories, links are resolved. ``input_uri``, ``output_uri``: see
    ``tables.joined_uris``; the main output is the first. ``output_uris``: by place (see
    ``storage.routed``). ``file_uris``: files of this machine that are read as texts."""

    input_uri: str
    output_uri: str
    file_uris: tuple[str, ...]
    output_uris: Mapping[str, str]


class _Check(Struct, frozen=True):
    """A check, and the problems that it has found: errors of the spec (``mistakes``), and places
    that are not allowed (``forbidden``). ``fetch``: the fetch policy of ``policy``."""

    policy: SpecPolicy
    fetch: FetchPolicy
    mistakes: list[SpecProblem] = field(default_factory=list)
    forbidden: list[SpecProblem] = field(default_factory=list)

    def wrong(self, path: str, message: str, hint: str = "") -> None:
        """Add an error of the spec."""
        self.mistakes.append(SpecProblem(path, message, hint))

    def forbid(self, path: str, message: str, hint: str = "") -> None:
        """Add a place that is not allowed."""
        self.forbidden.append(SpecProblem(path, message, hint))

    def allows(self, real: str) -> bool:
        """Whether a directory or file, by its real path, may be used."""
        return self.fetch.allows_path(real) and INTERNAL_PART not in real.split("/")


@contextmanager
def _checking(policy: SpecPolicy, fetch: FetchPolicy | None = None) -> Iterator[_Check]:
    """At the end ``SpecError`` or ``ForbiddenError`` if the check has found problems."""
    check = _Check(policy, fetch or policy.fetch_policy())
    yield check
    with bounded_problems():
        if check.mistakes:
            raise SpecError([*check.mistakes, *check.forbidden])
    if check.forbidden:
        messages = list(dict.fromkeys(check.forbidden))[: TextLimits().problems_max]
        hints = dict.fromkeys(each.hint for each in messages if each.hint)
        raise ForbiddenError("\n".join(map(str, messages)), hint="; ".join(hints))


def check_spec(spec: JobSpec, policy: SpecPolicy) -> SpecPlaces:
    """The places that ``spec`` names, if all are allowed.

    ``SpecError`` lists everything that no spec from the network may contain. Otherwise
    ``ForbiddenError`` lists everything that this service does not allow.
    """
    with _checking(policy) as check:
        inputs = [
            _checked_bucket(f"{source.path}input_bck", source.bucket, check)
            for source in spec.sources
        ]
        outputs: dict[str, str] = {}
        for place, path, ref in [
            ("", "output_bck", spec.output_bck),
            *(
                (each.place, f"{each.path}output_bck", each.bucket)
                for each in spec.targets
                if each.bucket is not None
            ),
        ]:
            outputs[place] = _checked_bucket(path, ref, check)
            if ref.is_directory and is_hidden_directory(outputs[place], policy):
                check.wrong(path, f'"{ref.uri}" is hidden: no job writes there')
        _check_names(spec, check)
        if spec.like:
            check.forbid(
                "like",
                "is for the command line: no token was checked for the bucket of that result",
                "run such a job with `dsort start` on the machine itself",
            )
        if spec.ingest is not None and spec.ingest.pipes:
            check.forbid(
                "ingest.pipes",
                "a recipe that runs programs is not for specs that come over the network",
                "run such a job with `dsort ingest` on the machine itself",
            )
        if not (check.mistakes or check.forbidden):  # nothing is looked up in refused buckets
            own = check.fetch.of_job(paths_of(inputs), paths_of(outputs.values()), ())
            _check_links(spec, own, check)
        files = _checked_files(spec, check)
    return SpecPlaces(joined_uris(inputs), joined_uris([*outputs.values()]), files, outputs)


def _checked_files(spec: JobSpec, check: _Check) -> tuple[str, ...]:
    """The URIs of the files of this machine that the spec names in any field. A bucket that is
    neither an input nor an output is refused, because it is not checked against the token."""
    buckets = {
        BucketRef("", ""),  # the value of an empty field
        spec.output_bck,
        *(source.bucket for source in spec.sources),
        *(target.bucket for target in spec.targets),
    }
    uris: dict[str, None] = {}
    for path, place in located(spec):
        if not isinstance(place, BucketRef):
            uri = _checked_location(path, place, check)
            uris.update({uri: None} if uri else {})
        elif place not in buckets:
            check.forbid(path, f'"{place.uri}" is neither an input nor an output of the job')
    return tuple(uris)


def check_files(spec: JobSpec, policy: SpecPolicy) -> tuple[str, ...]:
    """The URIs of files of this machine in the spec, if all may be read. For a spec whose buckets
    are already checked. ``SpecError``, ``ForbiddenError``."""
    with _checking(policy) as check:
        return _checked_files(spec, check)


def check_bucket(ref: BucketRef, policy: SpecPolicy, fetch: FetchPolicy | None = None) -> str:
    """The canonical URI of a bucket that a request names, if the bucket may be used. ``fetch``: the
    fetch policy, passed in by callers that check many buckets. ``SpecError``,
    ``ForbiddenError``."""
    with _checking(policy, fetch) as check:
        return _checked_bucket("bucket", ref, check)


def check_object(ref: BucketRef, name: str, policy: SpecPolicy) -> str:
    """The canonical URI of the bucket of an object that a request names, if the bucket may be used.
    ``SpecError``, ``ForbiddenError``."""
    with _checking(policy) as check:
        place = _checked_bucket("bucket", ref, check)
        _check_name("name", name, check_object_name, check)
        inside = name.rpartition("/")[0]
        if not check.mistakes and ref.is_directory and inside:
            real = os.path.realpath(_directory(ref, policy.root) / inside)
            if not check.allows(real):
                check.forbid("name", f'"{shortened(inside)}" {_OUTSIDE}')
    return place


def check_hooks(spec: JobSpec, config: ServiceConfig) -> None:
    """``SpecError`` if a hook of ``spec`` names a command that the service lacks;
    ``ForbiddenError`` if a hook calls a server that is not allowed for webhooks."""
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
                hint="its operator can allow it: dsort serve --webhook-allow-host, and for a "
                "private or loopback address --webhook-allow-private as well",
            )


def policy_of_bucket(uri: str, policy: SpecPolicy, file_uris: Iterable[str] = ()) -> FetchPolicy:
    """The policy for access to one bucket, and to some files, by their canonical URIs. Links that
    lead out of the bucket are never followed."""
    bucket = paths_of([uri])
    return policy.fetch_policy().of_job(bucket, bucket, paths_of(file_uris))


def place_of(ref: BucketRef, root: Path) -> str:
    """The canonical URI of a bucket; for a directory, ``file://`` and its real path."""
    if not ref.is_directory:
        return replace(ref, endpoint_url="", region="", profile="").uri
    return BucketRef("file", os.path.realpath(_directory(ref, root))).uri


def _directory(ref: BucketRef, root: Path) -> Path:
    return Path(ref.path) if ref.scheme else root / ref.path


# --- buckets -------------------------------------------------------------------------------------


def _checked_bucket(field: str, ref: BucketRef, check: _Check) -> str:
    policy = check.policy
    place = place_of(ref, policy.root)
    if ref.is_stream:
        what = "standard input and output are" if ref.scheme == STREAM else "programs are"
        hint = "run such a job with `dsort start` on the machine itself"
        check.forbid(field, f"{what} not for specs that come over the network", hint)
        return place
    if ref.is_directory:
        real = os.path.realpath(_directory(ref, policy.root))
        if INTERNAL_PART in ref.path.split("/"):
            check.wrong(field, f'"{ref.uri}" {_OWN}')
        elif not check.allows(real):
            hint = "a bare name is a directory under the service's data root"
            check.forbid(field, f'"{ref.uri}" {_OUTSIDE}', hint)
        return place
    if not ref.is_plain and not _is_as_set_up(ref, policy):
        hint = "leave endpoint_url, region and profile out: the settings of the service have them"
        check.forbid(field, f'"{ref.uri}": only the operator sets how a store is reached', hint)
    if not policy.allows_store(ref):
        check.forbid(field, f'"{ref.uri}" is none of the buckets of this service', _ALLOW_HINT)
    return place


def is_hidden_directory(uri: str, policy: SpecPolicy) -> bool:
    """Whether the directory at a canonical URI is hidden, or inside a hidden directory that the
    operator has not named."""
    root = os.path.realpath(policy.root)
    named = {part for each in (root, *policy.allow) for part in each.split("/")}
    parts = [part for path in paths_of([uri]) for part in path.split("/")]
    return any(is_hidden(part) and part not in named for part in parts)


def _is_as_set_up(ref: BucketRef, policy: SpecPolicy) -> bool:
    """Whether endpoint, region and profile in the spec equal those of the settings."""
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


def _check_names(spec: JobSpec, check: _Check) -> None:
    """Adds a problem for each name that leads to dsort's own files or out of the bucket, or that no
    object can have."""
    for path, template in _output_templates(spec):
        known = len(check.mistakes)
        _check_name(path, parse_template(template).name(0), check_output_name, check)
        if len(check.mistakes) == known:
            check.mistakes.extend(hidden_names(path, [template]))
    for source in spec.sources:
        field, inputs = f"{source.path}input_format", source.format
        if inputs.template is not None:
            _check_input_template(f"{field}.template", inputs.template, check)
        for name in inputs.objnames or ():
            _check_name(f"{field}.objnames", name, check_object_name, check)
        for path, text in (("prefix", inputs.prefix), ("glob", inputs.glob)):
            if text is not None:
                _check_name(f"{field}.{path}", text.removesuffix("/"), check_object_name, check)


def hidden_names(path: str, templates: Iterable[str]) -> list[SpecProblem]:
    """A problem for each template of output names that requests may not write. ``path``: the field
    of the spec that has the templates."""
    return [
        SpecProblem(path, f'a part of "{shortened(each)}" begins with a dot: such files are hidden')
        for each in templates
        if is_hidden(parse_template(each).name(0))
    ]


def _check_input_template(path: str, text: str, check: _Check) -> None:
    template = parse_input_template(text)
    shapes = template.shape_count
    if shapes > SHAPES_MAX:
        check.wrong(path, f"has {shapes:,} combinations of alternatives, over {SHAPES_MAX:,}")
    elif template.count * max(map(len, template.first_names)) > INPUT_NAME_BYTES_MAX:
        hint = "name inputs by input_format.prefix or .glob, or in several jobs"
        check.wrong(path, "stands for too many and too long names", hint)
    else:
        for name in template.shapes():
            _check_name(path, name, check_object_name, check)


def _check_name(path: str, name: str, rule: Callable[[str], None], check: _Check) -> None:
    try:
        rule(name)
    except ValueError as error:
        check.wrong(path, str(error))
        return
    if INTERNAL_PART in name.split("/"):
        check.wrong(path, f'a part of "{shortened(name)}" {_OWN}')


# --- links ---------------------------------------------------------------------------------------


def _check_links(spec: JobSpec, fetch: FetchPolicy, check: _Check) -> None:
    """Adds a problem for each directory that the spec names inside a bucket and that leads out of
    this bucket. The job checks the directories that a listing finds. ``fetch``: of the job."""
    writes = fetch.for_outputs()
    sides = [
        *(
            (each.bucket, f"{each.path}input_format", _named_inputs(each), fetch)
            for each in spec.sources
        ),
        *(
            (
                target.bucket or spec.output_bck,
                "output_format",
                _named_outputs(spec, target),
                writes,
            )
            for target in spec.targets
        ),
    ]
    for ref, path, names, allowed in sides:
        if not ref.is_directory:
            continue
        bucket = _directory(ref, check.policy.root)
        directories = dict.fromkeys(name.rpartition("/")[0] for name in names)
        # Each check takes system calls. The job checks all other directories when it opens them.
        for inside in [each for each in directories if each][:DIRECTORIES_MAX]:
            if not allowed.allows_path(os.path.realpath(bucket / inside)):
                check.forbid(path, f'"{shortened(inside)}" {_OUTSIDE}')


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


# --- files ---------------------------------------------------------------------------------------


def _checked_location(field: str, location: FileLocation, check: _Check) -> str | None:
    """The URI of a file of this machine that may be read; None for a file elsewhere, or for a
    refused file. Only the job looks up the name of a web server."""
    scheme = scheme_of(location)
    try:
        parts = urlsplit(location) if scheme else None
        port = parts.port if parts else None
    except ValueError:
        check.wrong(field, f'"{shortened(shown_location(location))}" is no URL')
        return None
    if parts is None or scheme == "file":
        if parts is not None and parts.netloc not in ("", "localhost"):
            check.wrong(field, "is a file of another machine")
            return None
        return _checked_file(field, path_in(location), check)
    if scheme in ("http", "https"):
        _check_url(field, location, parts, port, check)
    else:
        check.forbid(
            field,
            "is in an object store: specs that come over the network read no files from there",
            "copy the file to a bucket under the service's data root",
        )
    return None


def _check_url(
    field: str,
    location: str,
    parts: SplitResult,
    port: int | None,
    check: _Check,
) -> None:
    host = parts.hostname or ""
    if "@" in parts.netloc:
        check.wrong(field, "has a user or a password in it", SECRET_HINT)
    elif not host or "\\" in location or not location.isprintable():
        check.wrong(field, f'"{shortened(shown_location(location))}" is no URL')
    elif not check.fetch.allows_host(
        parts.scheme, host, port or (80 if parts.scheme == "http" else 443)
    ):
        check.forbid(
            field,
            f"this service fetches nothing from {shortened(parts.netloc)}",
            "its operator can allow the host, with its port if this is not the default; or name "
            "a file under the service's data root",
        )
    else:
        try:
            refusal = check.fetch.refusal_of_address(host)
        except ValueError:
            refusal = ""  # a name, not an address
        if refusal:
            check.forbid(field, refusal)


def _checked_file(field: str, path: str, check: _Check) -> str | None:
    if not path.isprintable():
        check.wrong(field, f"{shortened(path)!a} cannot be printed")
        return None
    real = os.path.realpath(check.policy.root / path)
    if not check.allows(real):
        check.forbid(field, f'"{shortened(path)}" {_OUTSIDE}')
        return None
    return BucketRef(_FILE, real).uri
