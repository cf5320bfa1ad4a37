"""Problems of a spec, expressed with the calls that built it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dsort.errors import SpecProblem

__all__ = ["OWNERS", "in_words_of_calls"]

OWNERS: Final[Mapping[str, str]] = {
    "algorithm": "order",
    "compatibility": "set(compatibility=...)",
    "deduplicate": "deduplicate",
    "description": "describe(...)",
    "dry_run": "plan()",
    "equalize": "equalize(...)",
    "ekm": "key_map(...)",
    "ekm_default": "key_map(default=...)",
    "ekm_file": "key_map(file=...)",
    "ekm_file_sep": "key_map(separator=...)",
    "exact": "split(exact=...)",
    "extract_concurrency_max_limit": "limits(extractors=...)",
    "create_concurrency_max_limit": "limits(creators=...)",
    "index": "index(...)",
    "ingest": "ingest",
    "input_bck": "read(...)",
    "input_extension": "read(container=...)",
    "input_format": "read",
    "inputs": "read(...)",
    "join": "join",
    "keep_shards": "keep_shards()",
    "key_field": "read(key_field=...)",
    "lineage": "lineage(...)",
    "max_expansion": "limits(expansion=...)",
    "max_mem_usage": "limits(memory=...)",
    "member_defaults": "convert(member_defaults=...)",
    "mix": "mix",
    "on_failure": "notify(on_failure=...)",
    "on_shard": "on_shard",
    "on_success": "notify(on_success=...)",
    "output_bck": "write(...)",
    "output_compression": "convert(compression=...)",
    "output_compression_level": "compress(level=...)",
    "output_extension": "write(container=...)",
    "output_format": "write(names=...)",
    "output_shard_count": "write(count=...)",
    "output_shard_records": "write(records=...)",
    "output_shard_size": "write(size=...)",
    "output_shard_size_counts": "write(size_counts=...)",
    "output_shard_size_is": "write(size_is=...)",
    "outputs": "split(...)",
    "overwrite": "write(overwrite=...)",
    "remove_stale": "write(remove_stale=...)",
    "require": "require",
    "row_group_bytes": "convert(row_group_bytes=...)",
    "row_group_rows": "convert(row_group_rows=...)",
    "split": "split(...)",
    "split_by": "split(by=...)",
    "stratify": "split(stratify=...)",
    "strip_final_newline": "convert(strip_final_newline=...)",
    "transform": "steps",
    "verify": "checksum()",
}
"""The call that sets each field of the spec; a call without brackets takes the parts of the field
as named arguments."""

_OF_SORT: Final = {
    "content_key_missing": "missing",
    "content_key_type": "type",
    "extension": "by",
    "json_field": "field",
    "keys": "by",
}
_CALLED: Final = {name: call for name, call in OWNERS.items() if "_" in name}
_NAMES: Final = re.compile(r"\b(" + "|".join(sorted(_CALLED, key=len, reverse=True)) + r")\b")
_STEP: Final = re.compile(r"transform\.steps\[(\d+)\](?:\.\w+)?(.*)")
_INPUT: Final = re.compile(r"inputs\[(\d+)\](.*)")
_OUTPUT: Final = re.compile(r"outputs\[(\d+)\](.*)")


def in_words_of_calls(
    problems: Sequence[SpecProblem], fields: Mapping[str, Any], order: str, inputs: Sequence[str]
) -> list[SpecProblem]:
    """``problems`` of a spec with these ``fields``, expressed with calls. ``order``: the call that
    set the order of records; ``inputs``: the calls that set the inputs."""
    return [
        SpecProblem(_path(each.path, fields, order, inputs), _text(each.message), _text(each.hint))
        for each in problems
    ]


def _text(text: str) -> str:
    return _NAMES.sub(lambda found: _CALLED[found[1]], text)


def _path(path: str, fields: Mapping[str, Any], order: str, inputs: Sequence[str]) -> str:
    step, given, output = (each.fullmatch(path) for each in (_STEP, _INPUT, _OUTPUT))
    if step is not None:
        return _step(int(step[1]), step[2], fields)
    if given is not None:
        number = int(given[1])
        call = inputs[number] if number < len(inputs) else "read(...)"
        return f"{call}{_part(given[2])}"
    if output is not None:
        outputs = fields.get("outputs", ())
        number = int(output[1])
        name = outputs[number].get("name", "") if number < len(outputs) else ""
        return f"output {name!r}{_part(output[2])}"
    name, dot, rest = path.partition(".")
    if name == "algorithm":
        argument = _OF_SORT.get(rest, rest) if order == "sort" else rest
        return f"{order}(...)" if rest in ("", "kind") else f"{order}({argument}=...)"
    if name == "transform" and dot:
        return {"use": "use(...)", "steps": "steps"}.get(rest, f"on_error({rest}=...)")
    call = OWNERS.get(name, name)
    if "(" in call or name not in OWNERS:
        return call + _part(path[len(name) :]) if name in OWNERS else f"reactions({path}=...)"
    return f"{call}({rest}=...)" if dot else f"{call}(...)"


def _step(number: int, rest: str, fields: Mapping[str, Any]) -> str:
    steps = fields.get("transform", {}).get("steps", ())
    kinds = [next(iter(each), "step") for each in steps]
    if number >= len(kinds):
        return f"step {number + 1}"
    kind = kinds[number]
    part = rest.lstrip(".")
    text = f"{kind}({part}=...)" if part else f"{kind}(...)"
    if kinds.count(kind) > 1:
        text += f" no. {kinds[: number + 1].count(kind)}"
    return text


def _part(rest: str) -> str:
    return f", {rest.lstrip('.')}" if rest.strip(".") else ""
