"""Steps are sent to workers as they are, and are made again of their options."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from dsort.spec.load import parse_spec
from dsort.transforms.payload import PayloadStep
from dsort.transforms.steps import STEPS
from tests.support.internals import steps_of

SPEC: dict[str, Any] = {"input_bck": "in", "output_format": "x-%d", "output_shard_size": "1MB"}
OPTIONS: dict[str, Any] = {
    "filter": "json.score > 0.5",
    "keep_keys": {"keys": ["a"]},
    "drop_keys": {"file": "keys.txt"},
    "sample": {"fraction": 0.5},
    "slice": "0:5",
    "require": {"extensions": ["jpg;png"], "fields": ["json.text"]},
    "fields": {"keep": ["info:info.json"], "drop": ["cls"]},
    "rekey": "{key}-{n}",
    "map": {"python": "a:b", "resources": {"memory": "1GiB"}, "columns": {"a": "int8"}},
    "flat_map": {"python": "a:b", "args": {"x": [1]}, "concurrency": [1, 4]},
    "exec": {"command": ["a"], "protocol": "tar"},
    "http": {"url": "http://host", "members": {"jpg": "npy"}},
}


def test_there_are_options_of_each_step() -> None:
    assert OPTIONS.keys() == STEPS.keys()


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_step_is_sent_as_it_is_and_made_again_of_its_options(kind: str) -> None:
    spec = parse_spec({**SPEC, "transform": {"steps": [{kind: OPTIONS[kind]}]}}).spec
    (step,) = steps_of(spec)
    assert type(step).of(step.options) == step
    known = step.loaded(lambda location: "k1\nk2\n")
    if isinstance(known, PayloadStep):
        known = known.described({"sources": {"a.py": "1"}, "packages": {}})
    sent = pickle.loads(pickle.dumps(known))
    assert sent == known
    assert (sent.options, sent.digest()) == (step.options, known.digest())
