"""What comes of small specs: all problems of wrong ones; of the others the canonical form, its
digest, and warnings. ``python -m tests.golden.specs`` writes it anew, for the specs in the file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dsort.errors import SpecError
from dsort.spec.load import parse_spec

__all__ = ["FILE", "result_of"]

FILE: Final = Path(__file__).with_suffix(".jsonl")
USUAL: Final[Mapping[str, Any]] = {
    "input_bck": "samples",
    "output_format": "shard-%d",
    "output_shard_size": "1MB",
}
"""A spec; the others are shown by the fields in which their canonical form differs from its own."""


def result_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """``spec`` and what comes of it, in JSON types."""
    try:
        loaded = parse_spec(spec)
    except SpecError as error:
        texts = [f"{each.path}: {each.message} [{each.hint}]" for each in error.problems]
        return {"spec": spec, "problems": texts or [str(error)]}
    canonical = loaded.spec.canonical()
    usual = parse_spec(USUAL).spec.canonical()
    differs = {name: each for name, each in canonical.items() if usual.get(name) != each}
    digest = hashlib.sha256(json.dumps(canonical).encode()).hexdigest()[:16]
    found = {"spec": spec, "digest": digest, "canonical": differs}
    left_out = [name for name in usual if name not in canonical]
    return (
        found
        | ({"without": left_out} if left_out else {})
        | ({"warnings": [*loaded.warnings]} if loaded.warnings else {})
    )


if __name__ == "__main__":
    specs = [json.loads(line)["spec"] for line in FILE.read_text().splitlines()]
    FILE.write_text("".join(f"{json.dumps(result_of(each))}\n" for each in specs))
