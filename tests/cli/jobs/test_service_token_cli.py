"""``dsort token`` on a database, whether a service runs or not: the secret is on stdout alone,
once, and what was typed is in the audit trail."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dsort.service.database.engine import open_database
from dsort.service.security.audit import Audit
from dsort.service.security.tokens import ADMIN, SUBMITTER, Identity, TokenStore
from tests.support.commands import CommandLine


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine) -> str:
    """The database that ``DSORT_DATABASE_URL`` names."""
    found = f"sqlite:///{tmp_path}/service.db"
    monkeypatch.setenv("DSORT_DATABASE_URL", found)
    return found


def verified(url: str, text: str) -> Identity | None:
    with open_database(url) as database:
        return TokenStore(database).verify(text)


def test_stdout_is_the_token_and_nothing_else(cli: CommandLine, url: str) -> None:
    made = cli("token", "add", "ann", "--role", "submitter", "--buckets", "/data/*")
    assert made.code == 0
    buckets = ("file:///data/*",)
    assert verified(url, made.out.removesuffix("\n")) == Identity(
        "ann", SUBMITTER, buckets, buckets
    )
    assert made.out.strip() not in made.err
    assert "ann" in made.err


def test_buckets_for_reading_and_writing_are_apart(cli: CommandLine, url: str) -> None:
    made = cli(
        *("token", "add", "ann", "--role", "submitter", "--json"),
        *("--input-buckets", "s3://a*", "--input-buckets", "s3://b*"),
        *("--output-buckets", "s3://c*", "--expires", "90d"),
    )
    document = json.loads(made.out)
    assert document["input_buckets"] == ["s3://a*", "s3://b*"]
    assert document["output_buckets"] == ["s3://c*"]
    assert verified(url, document["token"]) is not None


def test_tokens_are_listed_without_secrets_and_removed(cli: CommandLine, url: str) -> None:
    text = cli("token", "add", "ann", "--role", "admin").out.strip()
    listed = cli("token", "ls")
    assert listed.out.splitlines()[1].split()[:2] == ["ann", "admin"]
    as_json = cli("token", "ls", "--json")
    assert [each["name"] for each in json.loads(as_json.out)] == ["ann"]
    assert text.rsplit("_", 1)[1] not in listed.out + as_json.out
    assert cli("token", "rm", "ann").code == 0
    assert verified(url, text) is None
    gone = cli("token", "rm", "ann")
    assert gone.code == 6
    assert "ann" in gone.err


def test_what_was_typed_is_in_the_audit_trail(cli: CommandLine, url: str) -> None:
    text = cli("token", "add", "ann", "--role", "admin").out.strip()
    assert cli("token", "add", "ann", "--role", "viewer").code == 6  # the name is taken
    cli("token", "rm", "ann")
    with open_database(url) as database:
        rows = Audit(database).list()
    assert [(row.action, row.target) for row in rows] == [
        ("token.remove", "ann"),
        ("token.add", "ann"),
    ]
    assert rows[1].details["role"] == ADMIN
    assert rows[1].who.startswith("cli")
    assert text.rsplit("_", 1)[1] not in repr(rows)


@pytest.mark.parametrize(
    "wrong",
    [
        ["ann"],
        ["ann", "--role", "root"],
        ["ann smith", "--role", "viewer"],
        ["ann", "--role", "viewer", "--buckets", "images"],
        ["ann", "--role", "viewer", "--buckets", "*", "--input-buckets", "*"],
        ["ann", "--role", "admin", "--buckets", "s3://a"],
        ["ann", "--role", "viewer", "--expires", "soon"],
        ["ann", "--role", "viewer", "--expires", "0s"],
    ],
)
def test_a_mistake_makes_no_token(cli: CommandLine, url: str, wrong: list[str]) -> None:
    refused = cli("token", "add", *wrong)
    assert refused.code == 2
    assert refused.out == ""
    assert "error: " in refused.err
    assert json.loads(cli("token", "ls", "--json").out) == []


def test_the_database_is_in_the_state_directory_if_none_is_named(
    cli: CommandLine, tmp_path: Path
) -> None:
    made = cli("token", "add", "ann", "--role", "viewer", "--state-dir", tmp_path / "state")
    assert made.code == 0
    assert verified(f"sqlite:///{tmp_path}/state/service.db", made.out.strip()) is not None


def test_the_state_directory_is_for_its_user_alone_whatever_the_umask(
    cli: CommandLine, tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        for name in ("state", "a/deeper/state"):
            state = ("--state-dir", str(tmp_path / name))
            assert cli("token", "add", "ann", "--role", "admin", *state).code == 0
            modes = {
                path.relative_to(tmp_path / name): path.stat().st_mode & 0o777
                for path in (tmp_path / name, *(tmp_path / name).iterdir())
            }
            assert modes == {Path(): 0o700, Path("service.db"): 0o600}
    finally:
        os.umask(before)
