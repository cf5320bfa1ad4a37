"""Calls that set the inputs: inputs, their union, joins and mixtures, loose files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from dsort.builder.fields import BuilderFields, Place, input_place, name_of, problem
from dsort.spec.inputs import Nonmatch

__all__ = ["InputCalls", "input_fields"]


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
            f"{where} says which shards go in, and so does {', '.join(own)}",
            "leave out one of them",
        )
    fields = {"input_bck": bucket, "input_format": wanted or own, "input_extension": container}
    return {name: value for name, value in fields.items() if value not in (None, {})}


class InputCalls(BuilderFields):
    """Calls that set the inputs."""

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
        """Add an input, whose records follow those of the others. ``name``: the name of the input;
        default: the end of its path. ``weight``, ``repeat``: how often each of its records is
        written; ``records``: the number of records that are written. Other arguments as for
        ``dsort.read``."""
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
        """Add an input, whose records are joined with those of the others that have their key.

        ``by``: ``key``, ``stem``, ``json.image_id`` or an expression. ``nonmatch``: what happens to
        a record that is missing in an input: ``error``, ``skip``, ``none``. ``conflict``: what
        happens to two members with one extension. ``own_by``, ``own_nonmatch``: the same for this
        input alone (the latter applies to records that this input lacks). Other arguments as for
        ``union``.
        """
        made = input_fields(
            where, template=template, shards=shards, prefix=prefix, glob=glob, container=container
        )
        own = {"by": own_by, "nonmatch": own_nonmatch}
        made["join"] = {key: value for key, value in own.items() if value is not None} or None
        said = {"by": by, "nonmatch": nonmatch, "conflict": conflict}
        joined = {key: value for key, value in said.items() if value is not None}
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
        said = {"records": records, "stop": stop, "replacement": replacement, "seed": seed}
        given = {name: value for name, value in said.items() if value is not None}
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
        inputs.append({key: value for key, value in made.items() if value is not None})
        values = {**self.given, "inputs": inputs, **(more or {})}
        own = {"_where": where, **(shown or {})}
        return self._with(call, values, shown=own)
