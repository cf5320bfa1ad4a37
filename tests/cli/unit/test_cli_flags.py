"""Errors and warnings of a command name the options that were typed, and not the fields of a spec
that these set."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.cli.main import _VERBS
from dsort.cli.parameters import FIELDS, Command, command
from dsort.spec.model import schema
from tests.support.commands import CommandLine
from tests.support.datasets import small_dataset, write_shards

SPEC = "{input_bck: in, output_bck: out, output_format: o-%d, output_shard_records: 5}"

GIVEN = [
    (("start", "-f", SPEC, "--max-memory", "1KB"), "--max-memory: "),
    (("start", "-f", SPEC, "--max-memory", "much"), "--max-memory: "),
    (("start", "in/../x", "-f", SPEC), "SRC: "),
    (("start", "in", "a/../b", "-f", SPEC), "DST: "),
    (("convert", "in", "out", "--to", "foo"), "--to: "),
    (("convert", "in", "out", "--to", "zip", "--names", "a/../b-%d"), "--names: "),
    (("convert", "in", "out", "--to", "zip", "--shard-size", "big"), "--shard-size: "),
    (("convert", "in", "out", "--to", "zip", "--max-memory", "1KB"), "--max-memory: "),
    (("ingest", "in", "out", "--shard-size", "big"), "--shard-size: "),
    (("ingest", "in", "out", "--key-pattern", "("), "--key-pattern: "),
    (("transform", "in", "out", "--use", "nothing"), "--use: "),
    (("shuffle", "in", "out", "--split", "train=0.9,val=0.9"), "--split: "),
    (("shuffle", "in", "out", "--filter", "key <"), "--filter: "),
    (("reshard", "in", "out", "--shards", "3", "--shard-size", "1MB"), "--shards: "),
    (("sort", "in", "out", "--by", "member:.cls:integer"), "--by: "),
]


@pytest.mark.parametrize(("args", "said"), GIVEN, ids=lambda each: str(each)[-30:])
def test_an_error_names_the_option_that_was_typed(
    args: tuple[str, ...], said: str, cli: CommandLine, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", small_dataset("flags"))
    ended = cli(*args)
    assert ended.code == 2
    assert f"error: {said}" in ended.err


def test_an_error_names_other_options_of_the_command_too(cli: CommandLine, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", small_dataset("flags"))
    ended = cli("reshard", "in", "out", "--shards", "3", "--shard-size", "1MB")
    assert "--shards: only one of --shard-size and --shards" in ended.err
    assert "output_" not in ended.err
    ended = cli("shuffle", "in", "in", "--names", "in-%d")
    assert "hint: use another --names or another DST" in ended.err


def test_a_warning_names_the_option_that_was_typed(cli: CommandLine, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", small_dataset("flags"))
    ended = cli("convert", "in", "out", "--to", "tar", "--shard-size", "10", "--dry-run")
    assert ended.code == 0
    assert "warning: --shard-size: 10 is 10 bytes" in ended.err


NO_FIELDS = {
    *("as_json", "debug", "verbose", "progress", "dry_run", "wait", "priority", "labels", "server"),
    *("token_file", "local", "root", "spec", "help", "file", "run_code", "dataset", "bucket"),
    "print_spec",
    *("workers", "bandwidth_max", "scratch", "move", "places", "keys"),
    *("force", "ray", "ray_address", "ray_resources", "ray_labels"),
}
"""Parameters that set no field of a spec: errors about them name them already."""


@pytest.mark.parametrize(
    "verb",
    ["shuffle", "sort", "reshard", "start", "convert", "ingest", "transform", "append", "remove"],
)
def test_every_option_of_a_verb_that_makes_a_job_is_known(verb: str) -> None:
    (found,) = [each for each in _VERBS if each.name == verb]
    names = {param.name for param in command(verb, found.load(), Command).params}
    assert names - NO_FIELDS <= set(FIELDS)


def test_the_fields_of_options_are_fields_of_a_spec() -> None:
    properties = schema()["properties"]
    fields = {path.partition(".")[0] for paths in FIELDS.values() for path in paths}
    assert fields <= set(properties)
