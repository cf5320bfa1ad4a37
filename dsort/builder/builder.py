"""``SpecBuilder``: all calls that build a spec, and the methods that use the spec."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, Self, TypeVar

from dsort.builder.fields import BuilderFields, Place, input_place, name_of, only_given, problem
from dsort.builder.outputs import KeyMapCalls, OrderCalls, OutputCalls
from dsort.builder.steps import StepCalls
from dsort.settings import find_transform
from dsort.spec.model import JobSpec

if TYPE_CHECKING:
    from dsort.results.report import JobReport
    from dsort.spec.more_inputs import Nonmatch
__all__ = ["InputCalls", "SpecBuilder", "input_fields", "read"]


def input_fields(
    where: Place,
    *,
    template: str | None,
    shards: Sequence[str] | None,
    prefix: str | None,
    glob: str | None,
    container: str | None,
) -> dict[str, Any]:
    """The fields of one input of a spec, without its name. ``shards`` are names."""
    bucket, wanted = input_place(where)
    given = {"template": template, "objnames": shards, "prefix": prefix, "glob": glob}
    own = {
        name: list(value) if name == "objnames" else value
        for name, value in given.items()
        if value is not None
    }
    if wanted and own:
        raise problem(
            "read(...)",
            f"{where} selects the shards, and so does {', '.join(own)}",
            "leave out one of them",
        )
    fields = {"input_bck": bucket, "input_format": wanted or own, "input_extension": container}
    return {name: value for name, value in fields.items() if value not in (None, {})}


class InputCalls(BuilderFields):
    """Calls that set the inputs."""

    _set_by: ClassVar[Mapping[str, str]] = {
        "input_bck": "read(...)",
        "input_format": "read",
        "inputs": "read(...)",
        "ingest": "ingest",
        "mix": "mix",
        "join": "join",
        "input_extension": "read(container=...)",
        "key_field": "read(key_field=...)",
        "max_expansion": "limits(expansion=...)",
    }

    def union(
        self,
        where: Place,
        *,
        name: str | None = None,
        template: str | None = None,
        shards: Sequence[str] | None = None,
        prefix: str | None = None,
        glob: str | None = None,
        container: str | None = None,
        weight: float | None = None,
        repeat: int | None = None,
        records: int | None = None,
    ) -> Self:
        """Add an input, whose records follow the records of the other inputs. ``name``: the name of
        the input; default: the end of its path. ``weight``, ``repeat``: how often each of its
        records is written; ``records``: the number of records that are written. Other arguments as
        for ``dsort.read``."""
        made = input_fields(
            where, template=template, shards=shards, prefix=prefix, glob=glob, container=container
        )
        own = {"weight": weight, "repeat": repeat, "records": records}
        return self._with_input("union", where, name, made | own)

    def join(
        self,
        where: Place,
        *,
        by: str | None = None,
        nonmatch: Nonmatch | None = None,
        conflict: Literal["error", "first", "last"] | None = None,
        own_by: str | None = None,
        own_nonmatch: Nonmatch | None = None,
        name: str | None = None,
        template: str | None = None,
        shards: Sequence[str] | None = None,
        prefix: str | None = None,
        glob: str | None = None,
        container: str | None = None,
    ) -> Self:
        """Add an input. Each of its records is joined with the records of the other inputs that
        have the same key.

        ``by``: ``key``, ``stem``, ``json.image_id`` or an expression. ``nonmatch``: the reaction to
        a record that is missing in an input: ``error``, ``skip``, ``none``. ``conflict``: what
        happens to two members of one record with the same extension. ``own_by``, ``own_nonmatch``:
        ``by`` and ``nonmatch`` for this input alone; ``own_nonmatch`` applies to records that this
        input lacks. Other arguments as for ``union``.
        """
        made = input_fields(
            where, template=template, shards=shards, prefix=prefix, glob=glob, container=container
        )
        made["join"] = only_given(by=own_by, nonmatch=own_nonmatch) or None
        joined = only_given(by=by, nonmatch=nonmatch, conflict=conflict)
        rule = {**self.given.get("join", {}), **joined} or {"by": "key"}
        return self._with_input("join", where, name, made, {"join": rule}, joined)

    def mix(
        self,
        *,
        records: int | None = None,
        stop: Literal["first_exhausted", "all_exhausted"] | None = None,
        replacement: bool | None = None,
        seed: int | str | None = None,
    ) -> Self:
        """Set exactly how many records of each input are written, by the weights of the inputs."""
        given = only_given(records=records, stop=stop, replacement=replacement, seed=seed)
        return self._with("mix", {"mix": given}, shown=given)

    def ingest(self, **options: Any) -> Self:
        """Read loose files, not shards. ``options``: as for ``ingest`` of a spec: layout,
        extensions, key, class_map, table, ..."""
        return self._with("ingest", {"ingest": options}, shown=options)

    def _with_input(
        self,
        call: str,
        where: Place,
        name: str | None,
        made: dict[str, Any],
        more: dict[str, Any] | None = None,
        shown: dict[str, Any] | None = None,
    ) -> Self:
        inputs = [dict(each) for each in self.given.get("inputs", ())]
        taken: set[str] = set()
        for each in inputs:
            each.setdefault("name", name_of(each["input_bck"], taken))
            taken.add(each["name"])
        made["name"] = name or name_of(made["input_bck"], taken)
        inputs.append(only_given(**made))
        values = {**self.given, "inputs": inputs, **(more or {})}
        own = {"_where": where, **(shown or {})}
        return self._with(call, values, shown=own)


_OF_INPUT: Final = ("input_bck", "input_format", "input_extension")
Answer = TypeVar("Answer", covariant=True)


class Submits(Protocol[Answer]):
    """A client of a service: ``dsort.Client`` or ``dsort.AsyncClient``."""

    def submit(self, spec: Mapping[str, Any], /, **how: Any) -> Answer:
        """Put a job into the queue of the service."""


@dataclass(frozen=True, repr=False, eq=False)
class SpecBuilder(InputCalls, StepCalls, OrderCalls, OutputCalls, KeyMapCalls):
    """A job spec, built one call after the other. Frozen: each call returns a new builder.
    ``dsort.read`` makes the first one, ``SpecBuilder.of`` one from an existing spec.

    Two builders are equal if they set the same fields. From ``write`` on, each call checks the
    whole spec: ``SpecError`` lists all of its problems, and names the calls.
    """

    _set_by: ClassVar[Mapping[str, str]] = {
        "description": "describe(...)",
        "dry_run": "plan()",
        "verify": "checksum()",
        "amend": "set(amend=...)",
        "on_shard": "on_shard",
        "on_success": "notify(on_success=...)",
        "on_failure": "notify(on_failure=...)",
        "max_mem_usage": "limits(memory=...)",
        "default_max_mem_usage": "reactions(default_max_mem_usage=...)",
        "extract_concurrency_max_limit": "limits(extractors=...)",
        "create_concurrency_max_limit": "limits(creators=...)",
    }

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of(cls, spec: JobSpec) -> Self:
        """A builder that begins with ``spec``."""
        fields = spec.canonical()
        for name in ("on_success", "on_failure"):  # manifests do not contain hooks
            hook = getattr(spec, name)
            if hook is not None:
                fields[name] = hook.called
        if "inputs" not in fields:
            own = {name: fields.pop(name) for name in _OF_INPUT}
            own["input_format"] = {
                name: it for name, it in own["input_format"].items() if it is not None
            }
            fields["inputs"] = [own]
        where = f"{spec.input_uri} to {spec.output_bck.uri}"
        calls = (f"SpecBuilder.of({where!r})",)
        return cls(MappingProxyType(fields), calls, "order", is_whole=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpecBuilder) and self.to_dict() == other.to_dict()

    # --- other fields of a spec ------------------------------------------------------------------

    def checksum(self) -> Self:
        """Compare checksums of all records, when they are read and when they are written."""
        return self._with("checksum", {"verify": "content"}, shown={})

    def limits(
        self,
        *,
        memory: str | None = None,
        extractors: int | None = None,
        creators: int | None = None,
        expansion: int | None = None,
    ) -> Self:
        """Limits on the resources of the job, and on the expansion of compressed shards
        (``expansion``: the decoded size as a multiple of the file's)."""
        values = {
            "max_mem_usage": memory,
            "extract_concurrency_max_limit": extractors,
            "create_concurrency_max_limit": creators,
            "max_expansion": expansion,
        }
        given = {"memory": memory, "extractors": extractors, "creators": creators}
        return self._with("limits", values, shown={**given, "expansion": expansion})

    def reactions(self, **reactions: str) -> Self:
        """The reactions of the job to oddities, by their names in a spec:
        ``reactions(duplicate_keys="drop", missing_shards="ignore")``."""
        return self._with("reactions", reactions)

    def notify(
        self,
        *,
        on_success: Mapping[str, str] | None = None,
        on_failure: Mapping[str, str] | None = None,
    ) -> Self:
        """Hooks at the end of the job: ``{"webhook": url}`` or ``{"command": name}``."""
        success, failure = (None if it is None else dict(it) for it in (on_success, on_failure))
        return self._with("notify", {"on_success": success, "on_failure": failure})

    def on_shard(self, command: Sequence[str], *, timeout: int | str | None = None) -> Self:
        """A program that runs for each shard, once the result is committed."""
        said = only_given(exec=list(command), timeout=timeout)
        shown = {"_command": list(command), "timeout": timeout}
        return self._with("on_shard", {"on_shard": said}, shown=shown)

    def describe(self, text: str) -> Self:
        """A free text, which is stored in the manifest."""
        return self._with("describe", {"description": text}, shown={"_text": text})

    def set(self, **fields: Any) -> Self:
        """Fields of the spec by their own names: ``set(compatibility="aistore")``."""
        return self._with("set", fields)

    # --- using the spec --------------------------------------------------------------------------

    def spec(self) -> JobSpec:
        """The spec. ``SpecError`` lists all problems, and names the calls; fields without effect
        give a ``UserWarning``."""
        loaded = self._load(find_transform)
        for text in loaded.warnings:
            warnings.warn(text, UserWarning, stacklevel=2)
        return loaded.spec

    def to_yaml(self) -> str:
        """The fields as a spec file in YAML, for ``dsort start -f``."""
        import yaml

        text: str = yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)
        return text

    def plan(self, **how: Any) -> JobReport:
        """Plan the job with :func:`dsort.plan`, which takes the same arguments."""
        from dsort import api

        return api.plan(self.spec(), **how)

    def run(self, *, progress: bool = True, **how: Any) -> JobReport:
        """Run the job with :func:`dsort.run`, which takes the same arguments. ``progress``: whether
        a notebook or a terminal shows the progress, if neither ``on_event`` nor ``on_progress`` is
        given."""
        from dsort import api
        from dsort.progress_display import show_progress

        if not progress or "on_event" in how or "on_progress" in how:
            return api.run(self.spec(), **how)
        spec = self.spec()
        with show_progress() as shown:
            return api.run(spec, on_event=shown, **how)

    def submit(self, client: Submits[Answer], **how: Any) -> Answer:
        """Put the job into the queue of a service. ``how``: as for the ``submit`` of ``client``.
        Names of transforms are those of the service. With an ``AsyncClient`` the result has to be
        awaited."""
        self._checked()
        if not self.is_whole:
            self.spec()  # raises if a part is missing
        return client.submit(self.to_dict(), **how)


def read(
    where: Place,
    *,
    name: str | None = None,
    template: str | None = None,
    shards: Sequence[str] | None = None,
    prefix: str | None = None,
    glob: str | None = None,
    container: str | None = None,
    key_field: str | None = None,
    weight: float | None = None,
    repeat: int | None = None,
    records: int | None = None,
    own_by: str | None = None,
    own_nonmatch: Literal["error", "skip", "none"] | None = None,
) -> SpecBuilder:
    """Begin a job spec with an input::

        dsort.read("s3://raw/**/*.tar").shuffle(seed=42).write("s3://out/x-%06d.tar", size="1GB")

    ``where``: a bucket (``"images"``, ``"s3://raw/web"``, a ``Path``, an object as in a spec), a
    shard, a range of names (``"images/a-{00..18}.tar"``) or a pattern (``"images/**/*.tar"``). Or a
    bucket with ``template``, ``shards`` (names), ``prefix`` or ``glob``. ``container``: a suffix.
    ``key_field``: the place of the key of a record, in containers whose records have no names. If
    other inputs follow: ``name``, ``weight``, ``repeat`` and ``records`` as for ``union``,
    ``own_by`` and ``own_nonmatch`` as for ``join``.
    """
    made = input_fields(
        where, template=template, shards=shards, prefix=prefix, glob=glob, container=container
    )
    joined = only_given(by=own_by, nonmatch=own_nonmatch) or None
    made |= only_given(name=name, weight=weight, repeat=repeat, records=records, join=joined)
    shown = {"_where": where, "template": template, "prefix": prefix, "glob": glob}
    return SpecBuilder()._with("read", {"inputs": [made], "key_field": key_field}, shown=shown)
