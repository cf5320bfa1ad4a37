"""The first commands of a newcomer fail with the next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import CommandLine


def test_dsort_alone_shows_a_first_shuffle(cli: CommandLine) -> None:
    ended = cli()
    assert ended.code == 0
    assert "dsort shuffle images shuffled" in ended.out
    assert ended.out == cli("--help").out


@pytest.mark.parametrize(
    ("words", "code", "step"),
    [
        (["shuffle"], 2, "dsort shuffle [OPTIONS] SRC DST"),
        (["shuffle", "images"], 2, "`dsort shuffle --help`"),
        (["start"], 2, "`dsort start --help`"),
        (["shufle", "images", "x"], 2, "Did you mean 'shuffle'"),
        (["shuffle", "imges", "x"], 4, "--root"),
        (["shuffle", "empty", "x"], 3, "`dsort ls`"),
        (["shuffle", "loose", "x"], 3, "`dsort ingest`"),
        (["verify", "nowhere"], 3, "--bucket"),
    ],
)
def test_a_first_mistake_shows_the_next_step(
    words: list[str], code: int, step: str, cli: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "a.jpg").touch()
    ended = cli(*words)
    assert (ended.code, ended.out) == (code, "")
    assert step in ended.err
    assert not (tmp_path / "x").exists()


def test_a_bucket_without_credentials_names_the_variables(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    ended = cli("shuffle", "s3://raw/images", "s3://train/images")
    assert ended.code == 4
    assert "AWS_ACCESS_KEY_ID" in ended.err
