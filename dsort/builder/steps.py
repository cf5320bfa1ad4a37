"""Calls that change or select records before they are ordered, one step after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from dsort.builder.fields import BuilderFields, only_given, problem

__all__ = ["StepCalls"]


class StepCalls(BuilderFields):
    """Calls that add steps, and a call that leaves out equal records."""

    _set_by: ClassVar[Mapping[str, str]] = {
        "require": "require",
        "transform": "steps",
        "deduplicate": "deduplicate",
    }

    def filter(self, expression: str) -> Self:
        """Keep the records for which an expression (CEL) is true."""
        return self._with_step("filter", expression, _expression=expression)

    def keep_keys(
        self, keys: Sequence[str] | None = None, *, file: str | Path | None = None
    ) -> Self:
        """Keep the records whose keys are listed. ``file``: one key a line."""
        return self._with_step("keep_keys", _listed(keys, file), _keys=keys, file=file)

    def drop_keys(
        self, keys: Sequence[str] | None = None, *, file: str | Path | None = None
    ) -> Self:
        """Drop the records whose keys are listed. ``file``: one key a line."""
        return self._with_step("drop_keys", _listed(keys, file), _keys=keys, file=file)

    def sample(
        self,
        fraction: float,
        *,
        by: Literal["key", "record"] | None = None,
        seed: int | str | None = None,
    ) -> Self:
        """Keep a fraction of the records, chosen by a hash: the same records in every run."""
        options = only_given(fraction=fraction, by=by, seed=seed)
        return self._with_step("sample", options, _fraction=fraction, by=by, seed=seed)

    def require(
        self,
        *extensions: str,
        fields: Sequence[str] | None = None,
        on_missing: Literal["exclude", "abort", "warn", "ignore"] | None = None,
    ) -> Self:
        """Members that a record must have: ``require("jpg;png", "cls")``, and fields."""
        options = only_given(
            extensions=list(extensions) if extensions or fields is None else None,
            fields=None if fields is None else list(fields),
            on_missing=on_missing,
        )
        shown = {"fields": fields, "on_missing": on_missing}
        return self._with_step("require", options, _extensions=extensions, **shown)

    def fields(
        self,
        *,
        keep: Sequence[str] | None = None,
        drop: Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> Self:
        """Keep, drop and rename members of records, by extension."""
        keeps, drops = (None if each is None else list(each) for each in (keep, drop))
        options = only_given(
            keep=keeps, drop=drops, rename=None if rename is None else dict(rename)
        )
        return self._with_step("fields", options, **options)

    def slice(self, start: int | str = 0, stop: int | None = None, step: int = 1) -> Self:
        """Keep records start:stop:step, counted in input order over all inputs. The three may be
        one text: ``"0:1000000"``."""
        text = start if isinstance(start, str) else f"{start}:{'' if stop is None else stop}:{step}"
        return self._with_step("slice", text, _slice=text)

    def rekey(self, template: str) -> Self:
        """New keys by a template: ``"{shard}/{key}"``, ``"%09d"``, ``"{xxh3}"``."""
        return self._with_step("rekey", template, _template=template)

    def map(self, function: str | Callable[..., Any], **options: Any) -> Self:
        """A Python function makes one record from each record: ``package.module:name``,
        ``file.py:name``, or a function at the top level of a module. ``options``: args, decode,
        drop, batch_size, concurrency, resources, timeout, seed, columns."""
        place = _place_of(function, "map")
        return self._with_step("map", {"python": place, **options}, _function=place, **options)

    def flat_map(self, function: str | Callable[..., Any], **options: Any) -> Self:
        """A Python function makes any number of records from each record. ``options`` as for
        ``map``, and ``keys``."""
        place = _place_of(function, "flat_map")
        return self._with_step("flat_map", {"python": place, **options}, _function=place, **options)

    def exec(self, command: Sequence[str], **options: Any) -> Self:
        """A program makes other records. ``options``: protocol, drop, batch_size, concurrency,
        resources, timeout."""
        words = list(command)
        return self._with_step("exec", {"command": words, **options}, _command=words, **options)

    def http(self, url: str, **options: Any) -> Self:
        """A server makes other members or records. ``options``: members, args, drop, concurrency,
        timeout."""
        return self._with_step("http", {"url": url, **options}, _url=url, **options)

    def deduplicate(
        self,
        by: Literal["key", "content"] | Mapping[str, str] | None = None,
        *,
        extensions: Sequence[str] | None = None,
        keep: Literal["first", "last"] | None = None,
    ) -> Self:
        """Keep one of several equal records. ``by``: ``key``, ``content``, or a field: ``{"field":
        "json.text"}``. ``extensions``: of the members that are compared."""
        listed = None if extensions is None else list(extensions)
        said = only_given(by=by, extensions=listed, keep=keep)
        return self._with("deduplicate", {"deduplicate": said or {"by": "key"}}, shown=said)

    def step(self, kind: str, options: Any) -> Self:
        """A step of any kind, also one that another package has added."""
        return self._with_step(kind, options, _options=options)

    def use(self, name: str) -> Self:
        """A transform by its name, in place of steps: ``use("resize@3")``."""
        transform = {**self.given.get("transform", {}), "use": name}
        return self._with("use", {"transform": transform}, shown={"_name": name})

    def on_error(
        self,
        reaction: Literal["fail", "skip", "keep", "skip_shard", "stop"],
        *,
        max_errors: int | str | None = None,
        rejects: bool | Literal["payload"] | None = None,
    ) -> Self:
        """The reaction to a record at which a step with code fails. ``max_errors``: how many
        failures are allowed; ``rejects``: whether failed records are listed, with ``payload`` or
        without."""
        options = only_given(on_error=reaction, max_errors=max_errors, rejects=rejects)
        transform = {**self.given.get("transform", {}), **options}
        shown = {"_reaction": reaction, "max_errors": max_errors, "rejects": rejects}
        return self._with("on_error", {"transform": transform}, shown=shown)


def _listed(keys: Sequence[str] | None, file: str | Path | None) -> dict[str, Any]:
    listed = None if keys is None else [keys] if isinstance(keys, str) else list(keys)
    return only_given(keys=listed, file=None if file is None else str(file))


def _place_of(function: str | Callable[..., Any], call: str) -> str:
    """The name of a function as ``package.module:name``: workers load it by that name, and nothing
    is pickled."""
    if isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", "")
    module = getattr(function, "__module__", None) or ""
    if not name.isidentifier():
        raise problem(
            f"{call}(...)",
            f"{name or function!r} cannot be loaded by name: workers are processes of their own",
            "define it at the top of a module, or give its place: package.module:name",
        )
    if module != "__main__":
        return f"{module}:{name}"
    file = getattr(sys.modules[module], "__file__", None)
    if not file:
        raise problem(
            f"{call}(...)",
            f"{name} exists in this session alone, and workers are processes of their own",
            "put it into a file, and give its place: file.py:name",
        )
    return f"{Path(file).resolve()}:{name}"
