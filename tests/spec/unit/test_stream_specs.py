"""What specs say of streams: standard input, standard output, and what programs write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsort.errors import ForbiddenError
from dsort.service.config import SpecPolicy
from dsort.service.security.guard import check_spec
from dsort.spec.load import parse_spec

CURL = {"pipe": ["curl", "-sf", "https://host/{shard}"]}


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "-", "output_bck": "out"},
        {"input_bck": "in", "output_bck": "-"},
        {"input_bck": CURL, "input_format": {"template": "a-{0..3}"}, "output_bck": "out"},
    ],
)
def test_no_stream_comes_over_the_network(fields: dict[str, Any], tmp_path: Path) -> None:
    spec = parse_spec({"output_format": "x-{0..3}", **fields}).spec
    with pytest.raises(ForbiddenError, match="_bck"):
        check_spec(spec, SpecPolicy(root=tmp_path))
