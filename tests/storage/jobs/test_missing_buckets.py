"""A bucket that does not exist ends every command with one exit code."""

from __future__ import annotations

import pytest

from tests.support.commands import CommandLine

SPEC = "{output_format: o-%d, output_shard_records: 5}"
COMMANDS = [
    ("start", "nope", "out", "-f", SPEC),
    ("plan", "nope", "out", "-f", SPEC),
    ("ingest", "nope", "out"),
    ("convert", "nope", "out", "--to", "zip"),
    ("transform", "nope", "out", "--python", "json:loads"),
    ("ls", "nope"),
    ("gc", "nope"),
    ("cat", "nope/a.tar"),
    ("inspect", "nope/a.tar"),
    ("show", "a-job", "--bucket", "nope"),
    ("resume", "a-job", "--bucket", "nope"),
    ("stop", "a-job", "--bucket", "nope"),
    ("verify", "a-job", "--bucket", "nope"),
    ("verify", "./nope"),
    ("where", "file:///nope", "a-key"),
    ("show", "nope/prefix"),
    ("resume", "./nope"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each[0])
def test_a_missing_bucket_has_one_exit_code(command: tuple[str, ...], cli: CommandLine) -> None:
    assert cli(*command).code == 4
