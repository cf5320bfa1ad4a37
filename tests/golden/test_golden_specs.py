"""Small specs have the problems, or the canonical form, that are pinned: a manifest holds the
canonical form, and a job is resumed by it."""

from __future__ import annotations

import json
import re

from dsort.spec.excludes import EXCLUDES
from dsort.spec.load import parse_spec
from tests.golden.specs import FILE, result_of


def test_every_spec_gives_what_is_pinned() -> None:
    for line in FILE.read_text().splitlines():
        pinned = json.loads(line)
        assert result_of(pinned["spec"]) == pinned


def test_the_canonical_form_of_a_spec_is_that_spec_without_warnings() -> None:
    for line in FILE.read_text().splitlines():
        pinned = json.loads(line)
        if "canonical" in pinned:
            spec = parse_spec(pinned["spec"]).spec
            again = parse_spec(json.loads(json.dumps(spec.canonical())))
            warned = [text for text in again.warnings if "write a unit" not in text]  # few bytes
            assert (again.spec, warned) == (spec, []), pinned["spec"]


def test_every_exclusion_is_pinned() -> None:
    pinned = FILE.read_text()
    for row in EXCLUDES:
        for field in row.fields:
            path = row.path or field.partition(": ")[0]
            text = json.dumps(f"{path}: {row.message(field)} [{row.hint}]")
            # A message names facts of the spec where it has a word in braces.
            facts = re.sub(r"\\{\w+\\}", ".*", re.escape(text)).replace(r"s\[\]", r"s\[\d+\]")
            assert field == "weights" or re.search(facts, pinned), (field, row.other)
