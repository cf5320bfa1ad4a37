"""Manifests as data from outside: what is none is refused in words, what lies is found out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsort.errors import InputError
from dsort.spec.load import parse_spec
from tests.support.internals import (
    PROBLEMS_MAX,
    Findings,
    ManifestInput,
    ManifestOutput,
    check_totals,
    parse_manifest,
)
from tests.support.manifests import manifest_bytes

SPEC = parse_spec({"input_bck": "in", "output_format": "o-%d", "output_shard_size": "1MB"}).spec
INPUTS = [ManifestInput("in-\udcff.tar", 10240, 1, "etag", 3)]
OUTPUTS = [ManifestOutput("o-0.tar", 3, 6, 100, 5000, "0" * 16)]


def good() -> dict[str, Any]:
    data = manifest_bytes(
        job_id="j",
        spec=SPEC.canonical(),
        inputs=INPUTS,
        outputs=OUTPUTS,
    )
    loaded: dict[str, Any] = json.loads(data.decode("utf-8", "surrogateescape"))
    return loaded


def test_a_manifest_comes_back_as_it_was_written() -> None:
    stored = parse_manifest(json.dumps(good()).encode())
    assert (stored.inputs, stored.outputs) == (tuple(INPUTS), tuple(OUTPUTS))
    assert (stored.job_id, stored.spec, stored.index) == ("j", SPEC, None)
    findings = Findings("j", lambda event: None)
    check_totals(stored, findings)
    assert findings.count == 0


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"[1, 2]", b"{}", b"[" * 100_000, b'{"manifest": "1"}', b"null"],
    ids=["nothing", "no text", "a list", "empty", "deep", "version as text", "null"],
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(InputError) as refused:
        parse_manifest(data)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("spec",), 3, "spec"),
        (("spec", "input_bck"), None, "input_bck"),
        (("job_id",), None, "job_id"),
        (("totals",), [], "totals"),
        (("index",), 3, "index"),
        (("inputs",), {}, "inputs"),
        (("inputs", 0), "in-0.tar", "inputs[0]"),
        (("inputs", 0, "bytes"), "10240", "inputs[0].bytes"),
        (("outputs", 0, "records"), True, "outputs[0].records"),
        (("outputs", 0, "xxh3"), 17, "outputs[0].xxh3"),
        (("outputs", 0, "name"), None, "outputs[0].name"),
    ],
)
def test_a_field_that_is_wrong_is_named(
    path: tuple[str | int, ...], value: object, named: str
) -> None:
    manifest: Any = good()
    holder = manifest
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    with pytest.raises(InputError) as refused:
        parse_manifest(json.dumps(manifest).encode())
    assert named in refused.value.message


def test_a_manifest_of_another_version_is_refused() -> None:
    with pytest.raises(InputError, match="version 2"):
        parse_manifest(json.dumps({**good(), "manifest": 2}).encode())


@pytest.mark.parametrize("name", sorted(good()["totals"]))
def test_totals_that_do_not_add_up_are_reported(name: str) -> None:
    manifest = good()
    manifest["totals"][name] += 1
    findings = Findings("j", lambda event: None)
    check_totals(parse_manifest(json.dumps(manifest).encode()), findings)
    (problem,) = findings.problems
    assert problem.kind == "manifest"
    assert name in problem.text


def test_all_problems_are_counted_and_the_first_kept() -> None:
    findings = Findings("j", lambda event: None)
    for number in range(PROBLEMS_MAX + 5):
        findings.problem("order", "s.tar", str(number), "")
    findings.unnamed(7)
    assert findings.count == PROBLEMS_MAX + 12
    assert [each.record for each in findings.problems] == [str(n) for n in range(PROBLEMS_MAX)]
