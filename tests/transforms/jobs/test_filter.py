"""The step ``filter`` as its users meet it: the example of its description, mistakes, records of
which it cannot be said, other containers, the network."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import SpecError, TransformError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import count_of, records_out, refused, run_local, spec_of
from tests.support.internals import manifest_name, steps_of

pytestmark = pytest.mark.usefixtures("workers_here")

EXAMPLE = 'ext("json").score > 0.5 && size("jpg") < 5_000_000'


def filtered(*texts: str, **fields: Any) -> dict[str, Any]:
    return spec_of(transform={"steps": [{"filter": text} for text in texts]}, **fields)


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """Two shards of ten records, whose scores are 0.0 to 0.9, and 1 where a float is expected."""
    shards = {}
    for shard in (0, 1):
        members = []
        for number in range(10):
            score = json.dumps({"score": 1 if number == 9 else number / 10, "tags": ["a", "b"]})
            key = f"{shard}{number}"
            members += [Member(f"{key}.jpg", bytes(number)), Member(f"{key}.json", score.encode())]
            members += [Member(f"{key}.cls", b"%d\n" % number)]
        shards[f"in-{shard}.tar"] = Shard(tuple(members))
    write_shards(tmp_path / "in", shards)
    return tmp_path


def keys_out(root: Path) -> list[str]:
    return [name[:-4] for name in records_out(root) if name.endswith(".jpg")]


@pytest.mark.parametrize("move", ["map", "spill"])
def test_the_example_of_the_documentation_keeps_what_it_says(scored: Path, move: str) -> None:
    report = run_local(scored, filtered(EXAMPLE), move=move)
    assert keys_out(scored) == [f"{shard}{number}" for shard in (0, 1) for number in range(6, 10)]
    count, names = count_of(report, "left_out_by_steps")
    assert (count, sorted(names)) == (12, ["filter in in-0.tar", "filter in in-1.tar"])
    manifest = (scored / "out" / manifest_name(report.job_id)).read_bytes()
    assert json.loads(manifest)["spec"]["transform"] == {"steps": [{"filter": EXAMPLE}]}
    assert api.verify(manifest, options=RunOptions(root=scored)).problems == ()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('key.startsWith("0") && ordinal % 5 == 0', ["00", "05"]),
        ('shard == "in-1.tar" && size("jpg") > 7', ["18", "19"]),
        ('ext("cls") == 3 || ext("json").score >= 1', ["03", "09", "13", "19"]),
        ('key.matches("^.[01]$") && "a" in ext("json").tags', ["00", "01", "10", "11"]),
        ('has("png")', []),
    ],
)
def test_an_expression_may_ask_for_all_that_a_record_says(
    scored: Path, text: str, wanted: list[str]
) -> None:
    run_local(scored, filtered(text))
    assert keys_out(scored) == wanted


def test_filters_are_done_one_after_the_other(scored: Path) -> None:
    run_local(scored, filtered("ordinal >= 5", "ordinal < 2"))  # of what is left
    assert keys_out(scored) == ["05", "06", "15", "16"]


def test_rows_of_text_are_filtered_by_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = [b'{"id": %d, "ok": %s}\n' % (n, b"true" if n % 3 else b"false") for n in range(10)]
    (tmp_path / "in" / "in-0.jsonl").write_bytes(b"".join(lines))
    run_local(
        tmp_path,
        filtered('ext("json").ok', input_extension=".jsonl", output_shard_records=100),
    )
    found = (tmp_path / "out" / "out-0.jsonl").read_bytes()
    assert found == b"".join(line for line in lines if b"true" in line)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ext("json").scor > 0.5', ["there is no field scor"]),
        ('ext("json").tags > 0.5', ["a list > a number cannot be compared", "double("]),
        ('size("png") > 5', ["there is no png member"]),
    ],
)
def test_a_record_of_which_it_cannot_be_said_ends_the_job(
    scored: Path, text: str, words: list[str]
) -> None:
    with refused(scored, TransformError, "record 00 of shard in-0.tar", text, "has(", *words):
        run_local(scored, filtered(text))


def test_a_job_warns_if_its_steps_leave_no_record(scored: Path) -> None:
    report = run_local(scored, filtered('size("jpg") > 1_000_000_000'))
    left_out = sum(each.count for each in report.reactions)
    assert (report.records, left_out > 0) == (0, True)
    assert f"no record is left: steps left out {left_out}" in report.warnings


def test_records_may_be_asked_first_what_they_have(scored: Path) -> None:
    text = 'has(ext("json").scor) && ext("json").scor > 0.5 || has("png") && size("png") > 5'
    assert run_local(scored, filtered(text)).records == 0


def test_mistakes_are_told_with_all_others_of_the_spec() -> None:
    steps = [{"filter": 'size("jpg")'}, {"filter": "kee == 'a'"}, {"sample": {"fraction": 2}}]
    with pytest.raises(SpecError) as refusal:
        parse_spec(spec_of(transform={"steps": steps}, output_shard_records="x"))
    said = str(refusal.value)
    assert "transform.steps[0].filter: is a number, not true or false" in said
    assert "transform.steps[1].filter: at character 1: there is no kee" in said
    assert 'did you mean "key"?' in said
    assert "transform.steps[2].sample.fraction" in said
    assert "output_shard_records" in said


def test_a_filter_is_part_of_what_a_job_is() -> None:
    one, other = (parse_spec(filtered(text)).spec for text in ("ordinal < 5", "ordinal < 6"))
    assert steps_of(one)[0].digest() != steps_of(other)[0].digest()
    assert steps_of(one)[0].is_safe_from_network
    assert re.fullmatch("[0-9a-f]{64}", steps_of(one)[0].digest())
