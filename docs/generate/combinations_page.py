"""The page of combinations: each pair of features is a spec, which dsort checks."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, Final

from docs.generate.words import escaped, head
from dsort.errors import SpecError
from dsort.naming import extensions
from dsort.spec.load import parse_spec

__all__ = [
    "CODECS",
    "CONTAINERS",
    "FEATURES",
    "SameFieldError",
    "combinations_page",
    "refusal",
    "spec_with",
]

INTRODUCTION: Final = """
Each row and each column of the table is one feature of a spec; a column has the number of its row.

| cell | meaning |
|:-:|---|
| ✓ | the two features can be combined |
| – | both set the same field: a spec has one of them |
| a number | the spec is refused; [the reason](#reasons) has this number |

dsort itself made the table: for each cell it checked a spec that has the two features, buckets,
names and sizes, and nothing else. Three features that can be combined in pairs may still be refused
together. Rules about the records are checked when the job runs.
[Containers and codecs](#containers) have tables of their own.
"""
CONTAINERS_INTRODUCTION: Final = """
## Containers

Each row of the first table is a feature of the table above, for a job that reads and writes shards
of one container. In the reasons, SUFFIX stands for the suffix of the shards.
"""
CODECS_INTRODUCTION: Final = """
The second table has the codecs around each container: ✓ is read and written, *read* is read only.
Tables with a codec around them are read for conversions to other containers.
"""
CONVERSIONS: Final = """
Each of these containers can be converted into each other one. The job fails at a record that the
other container cannot hold: [Formats](../formats.md#conversions).
"""
BASE: Final = {
    "input_bck": "in",
    "output_bck": "out",
    "output_format": "shard-%06d",
    "output_shard_size": "1GB",
}
_CODE: Final = {"map": {"python": "package.module:function"}}
_TWO: Final = {"a": {"input_bck": "one"}, "b": {"input_bck": "two"}}
_WEIGHED: Final = {name: {**each, "weight": 0.5} for name, each in _TWO.items()}
_PARTS: Final = {"train": {"fraction": 0.9}, "val": {"fraction": 0.1}}
_NAMED: Final = {"output_format": "{split}-%06d"}
_JOINED: Final = {"inputs": _TWO, "join": {"by": "key"}}
FEATURES: Final[Mapping[str, Mapping[str, Any]]] = {
    "shuffle": {"algorithm": {"kind": "shuffle"}},
    "sort by key": {"algorithm": {"kind": "alphanumeric"}},
    "sort by a member": {
        "algorithm": {"kind": "content", "extension": ".cls", "content_key_type": "int"}
    },
    "sort by a field": {"algorithm": {"kind": "value", "value": "json.length"}},
    "order of the inputs": {"algorithm": {"kind": "none"}},
    "`interleave`": {"algorithm": {"kind": "shuffle", "interleave": {"by": "cls"}}},
    "`batches`": {
        "algorithm": {"kind": "shuffle", "batches": {"records": 8, "similar": "json.length"}}
    },
    "several inputs": {"inputs": _TWO},
    "weights of inputs": {"inputs": _WEIGHED},
    "`mix`": {"inputs": _WEIGHED, "mix": {"records": 1000}},
    "`join`": _JOINED,
    "`ingest`": {"ingest": {"layout": "files"}},
    "standard input": {"input_bck": "-"},
    "filter over the index": {"transform": {"steps": [{"filter": 'has("jpg")'}]}},
    "filter over members": {"transform": {"steps": [{"filter": 'ext("cls") > 3'}]}},
    "`rekey`": {"transform": {"steps": [{"rekey": "new/{key}"}]}},
    "a Python function": {"transform": {"steps": [_CODE]}},
    "deduplicate by key": {"deduplicate": {"by": "key"}},
    "deduplicate by content": {"deduplicate": {"by": "content"}},
    "deduplicate by a field": {"deduplicate": {"by": {"field": "json.length"}}},
    "outputs by fractions": {"outputs": _PARTS, **_NAMED},
    "outputs by conditions": {
        "outputs": {"some": {"when": 'has("jpg")'}, "rest": {"when": True}},
        **_NAMED,
    },
    "`exact` outputs": {"outputs": _PARTS, "exact": True, **_NAMED},
    "`stratify`": {"outputs": _PARTS, "stratify": "cls", **_NAMED},
    "`split_by`": {"outputs": _PARTS, "split_by": "key", **_NAMED},
    "outputs in two buckets": {
        "outputs": {name: {**each, "output_bck": name} for name, each in _PARTS.items()},
        **_NAMED,
    },
    "external key map": {"ekm": {"shard-%06d": ["a.*"]}, "output_format": None},
    "number of shards": {"output_shard_count": 8, "output_shard_size": None},
    "shards of at most a size": {"output_shard_size_is": "at_most"},
    "`equalize`": {"output_shard_count": 8, "output_shard_size": None, "equalize": "drop"},
    "`keep_shards`": {"keep_shards": True, "output_format": None, "output_shard_size": None},
    "`like` another result": {"like": "like", "output_format": None, "output_shard_size": None},
    "Parquet outputs": {"output_extension": ".parquet"},
    "compressed tars": {"output_extension": ".tar.zst"},
    "standard output": {"output_bck": "-"},
    "`index` for wids": {"index": "wids"},
    "`lineage`": {"lineage": "jsonl"},
    "`on_shard`": {"on_shard": {"exec": ["true"]}},
    "`amend`": {"amend": {"job": "20260131-235959-4f2a9c"}},
    "`output: view`": {"output": "view"},
}


_PLACES: Final = tuple(extensions.CONTAINERS.values())
CONTAINERS: Final = tuple(
    suffix
    for at, (suffix, place) in enumerate(extensions.CONTAINERS.items())
    if place not in _PLACES[:at]
)
"""The first suffix of each container."""
CODECS: Final = tuple(codec.suffixes[0] for codec in extensions.CODECS)


class SameFieldError(Exception):
    """Two features set one field to different values."""


def combinations_page() -> str:
    """The table, and the reason of each refusal."""
    for name in FEATURES:
        if refused := refusal(name):
            raise ValueError(f"docs/generate/combinations_page.py: {name} alone: {refused}")
    reasons: dict[str, list[tuple[str, str]]] = {}
    cells: dict[tuple[str, str], str] = {}
    for pair in combinations(FEATURES, 2):
        cells[pair] = _cell(pair, reasons)
    parts = [head("What can be combined", "the checks of specs"), INTRODUCTION, *_table(cells)]
    parts += [CONTAINERS_INTRODUCTION, *_container_table(reasons)]
    parts += [CODECS_INTRODUCTION, *_codec_table(reasons), CONVERSIONS]
    parts.append("\n## Reasons\n")
    for number, (reason, pairs) in enumerate(reasons.items(), 1):
        named = "; ".join(f"{one} with {other}" for one, other in pairs)
        parts.append(f'<a id="reason-{number}"></a>**{number}** {escaped(reason)}\n:   {named}\n')
    return "\n".join(parts).rstrip("\n") + "\n"


def _cell(pair: tuple[str, str], reasons: dict[str, list[tuple[str, str]]]) -> str:
    try:
        refused = refusal(*pair)
    except SameFieldError:
        return "–"
    if not refused:
        return "✓"
    suffix = pair[1] if pair[1] in CONTAINERS else ""
    return _numbered(_without(suffix, refused), pair, reasons)


def _without(suffix: str, reason: str) -> str:
    """The reason without the suffix of one container, so that other containers share it."""
    return re.sub(rf"(?<!\w){re.escape(suffix)}\b", "SUFFIX", reason) if suffix else reason


def _numbered(
    refused: str, pair: tuple[str, str], reasons: dict[str, list[tuple[str, str]]]
) -> str:
    """A link to the reason, which is added if it is new."""
    reasons.setdefault(refused, []).append(pair)
    number = [*reasons].index(refused) + 1
    return f"[{number}](#reason-{number})"


def _table(cells: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """A row for each feature, with a cell for each feature before it."""
    names = [*FEATURES]
    yield f"| | feature | {' | '.join(str(n) for n in range(1, len(names)))} |"
    yield f"|--:|---|{':-:|' * (len(names) - 1)}"
    for number, name in enumerate(names):
        row = [cells[before, name] for before in names[:number]]
        row += [""] * (len(names) - 1 - number)
        yield f"| {number + 1} | {name} | {' | '.join(row)} |"


def _container_table(reasons: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
    """A row for each feature, with a cell for each container."""
    yield f"| feature | {' | '.join(f'`{each}`' for each in CONTAINERS)} |"
    yield f"|---|{':-:|' * len(CONTAINERS)}"
    for name in FEATURES:
        yield f"| {name} | {' | '.join(_cell((name, each), reasons) for each in CONTAINERS)} |"


def _codec_table(reasons: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
    """A row for each container, with a cell for each codec."""
    yield f"| container | {' | '.join(f'`{each}`' for each in CODECS)} |"
    yield f"|---|{':-:|' * len(CODECS)}"
    for container in CONTAINERS:
        cells = [_codec_cell(container, codec, reasons) for codec in CODECS]
        yield f"| `{container}` | {' | '.join(cells)} |"


def _codec_cell(container: str, codec: str, reasons: dict[str, list[tuple[str, str]]]) -> str:
    reads = not _problem({**BASE, "input_extension": container + codec, "output_extension": ".tar"})
    refused = _problem({**BASE, "output_extension": container + codec})
    if not refused:
        return "✓" if reads else "written"
    number = _numbered(_without(container + codec, refused), (container, codec), reasons)
    return f"read, {number}" if reads else number


def spec_with(*features: str) -> dict[str, Any]:
    """A spec that has these features (or a container, for inputs and outputs), buckets, names and
    sizes, and nothing else. ``SameFieldError`` if two of them set one field."""
    fields: dict[str, Any] = {}
    for name in features:
        own = {"input_extension": name, "output_extension": name}
        _merge(fields, own if name in CONTAINERS else FEATURES[name])
    spec = {**BASE, **fields}
    for name in ("inputs", "outputs"):
        if name in spec:
            spec[name] = [{"name": each, **own} for each, own in spec[name].items()]
    if "inputs" in spec and "input_bck" not in fields:
        del spec["input_bck"]
    return {name: value for name, value in spec.items() if value is not None}


def refusal(*features: str) -> str:
    """Why a spec with these features is refused; "" if it is not."""
    return _problem(spec_with(*features))


def _problem(spec: Mapping[str, Any]) -> str:
    try:
        parse_spec(spec)
    except SpecError as error:
        # Names and sizes are those of the table, and no reason where there is another one.
        found = sorted(error.problems, key=lambda each: each.path.rpartition(".")[2] in BASE)
        hint = f" Hint: {found[0].hint}." if found[0].hint else ""
        return f"`{found[0].path}` {found[0].message}.{hint}"
    return ""


def _merge(fields: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Put ``more`` into ``fields``: objects field by field, lists one behind the other. None stands
    for a field that a feature does not need."""
    for name, value in more.items():
        if isinstance(value, Mapping) and isinstance(fields.get(name), dict):
            _merge(fields[name], value)
        elif isinstance(value, list) and name in fields:
            fields[name] = fields[name] + value
        elif value is None and name in fields:
            continue
        elif fields.get(name) not in (None, value):
            raise SameFieldError(name)
        else:
            fields[name] = copy.deepcopy(value)
