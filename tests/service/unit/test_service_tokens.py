"""The law of tokens: the secret is shown once and stored nowhere; a token that is wrong, removed or
expired is refused."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from dsort.errors import ConflictError, NotFoundError, SpecError
from dsort.log_lines import LineFormatter
from dsort.service.database.engine import Database, open_database
from dsort.service.database.tables import tokens
from dsort.service.security.audit import Audit
from dsort.service.security.tokens import (
    ADMIN,
    SUBMITTER,
    VIEWER,
    Identity,
    TokenStore,
)

NOW = 1_000_000.0


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = NOW

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(f"sqlite:///{tmp_path}/service.db") as opened:
        yield opened


@pytest.fixture
def store(database: Database, clock: Clock) -> TokenStore:
    return TokenStore(database, clock=clock)


def test_whoever_holds_the_token_is_known(store: TokenStore) -> None:
    text = store.add("ann", SUBMITTER, ["s3://in*"], ["s3://out*", "/data/*"])
    assert store.verify(text) == Identity(
        "ann", SUBMITTER, ("s3://in*",), ("s3://out*", "file:///data/*")
    )
    assert text.split("_")[1] == store.list()[0].token_id


def test_two_tokens_are_two(store: TokenStore) -> None:
    texts = {name: store.add(name, VIEWER) for name in ("ann", "bob")}
    assert len({*texts.values()}) == 2
    for name, text in texts.items():
        found = store.verify(text)
        assert found is not None
        assert found.name == name


def test_the_secret_is_kept_nowhere(store: TokenStore, database: Database, tmp_path: Path) -> None:
    text = store.add("ann", VIEWER)
    store.verify(text)
    database.close()
    secret = text.rsplit("_", 1)[1]
    files = list(tmp_path.iterdir())
    assert files
    for path in files:
        assert secret.encode() not in path.read_bytes()
        assert bytes.fromhex(secret) not in path.read_bytes()


def test_the_database_holds_the_sha256_of_the_secret(store: TokenStore, database: Database) -> None:
    secret = store.add("ann", VIEWER).rsplit("_", 1)[1]
    assert len(secret) * 4 == 192  # random bits: a slow hash would add nothing
    with database.reading() as connection:
        stored = connection.execute(select(tokens.c.digest)).scalar_one()
    assert stored == hashlib.sha256(secret.encode()).digest()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda text: "",
        lambda text: text[:-1],
        lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"),
        lambda text: text + "\n",
        lambda text: text.upper(),
        lambda text: text.replace("dsort_", "dsort__"),
        lambda text: "dsort_" + "0" * 12 + text[18:],
        lambda text: "dsort_é_é",
    ],
)
def test_what_is_not_the_token_lets_nobody_in(store: TokenStore, wrong: Any) -> None:
    assert store.verify(wrong(store.add("ann", VIEWER))) is None


def test_a_removed_token_is_refused_at_once(store: TokenStore) -> None:
    text = store.add("ann", VIEWER)
    assert store.verify(text)
    store.remove("ann")
    assert store.verify(text) is None
    assert store.verify(store.add("ann", ADMIN)) == Identity("ann", ADMIN)
    assert store.verify(text) is None


def test_what_a_token_may_do_is_read_anew_each_time(store: TokenStore, database: Database) -> None:
    text = store.add("ann", SUBMITTER)
    store.verify(text)
    with database.writing() as connection:
        connection.execute(update(tokens).values(role=VIEWER))
    found = store.verify(text)
    assert found is not None
    assert found.role == VIEWER


def test_a_token_expires(store: TokenStore, clock: Clock) -> None:
    text = store.add("ann", VIEWER, expires_at=NOW + 30)
    assert store.verify(text)
    assert store.any()
    assert store.find("ann") == Identity("ann", VIEWER)
    clock.now_s += 30
    assert store.verify(text) is None
    assert store.find("ann") is None
    assert not store.any()
    assert [each.name for each in store.list()] == ["ann"]


def test_a_store_without_tokens_has_none(store: TokenStore) -> None:
    assert not store.any()
    assert list(store.list()) == []
    assert store.find("ann") is None
    with pytest.raises(NotFoundError):
        store.remove("ann")


def test_a_name_is_given_once(store: TokenStore) -> None:
    text = store.add("ann", VIEWER)
    with pytest.raises(ConflictError):
        store.add("ann", ADMIN)
    assert store.verify(text) == Identity("ann", VIEWER)


@pytest.mark.parametrize(
    ("name", "role", "globs", "expires_at"),
    [
        ("", VIEWER, ["*"], None),
        ("ann smith", VIEWER, ["*"], None),
        ("-ann", VIEWER, ["*"], None),
        ("a" * 129, VIEWER, ["*"], None),
        ("anyone", VIEWER, ["*"], None),
        ("ann", "root", ["*"], None),
        ("ann", ADMIN, ["s3://a"], None),
        ("ann", VIEWER, ["images"], None),
        ("ann", VIEWER, ["*"], NOW),
    ],
)
def test_what_no_token_can_be_is_refused(
    store: TokenStore, name: str, role: str, globs: list[str], expires_at: float | None
) -> None:
    with pytest.raises(SpecError):
        store.add(name, role, globs, expires_at=expires_at)
    assert list(store.list()) == []


def test_what_is_done_is_noted_with_it_or_not_at_all(database: Database, clock: Clock) -> None:
    audit = Audit(database, clock=clock)
    audit.note(None, "ann", "10.0.0.1", "job.submit", "job-1", {"kind": "run"})

    def fail() -> None:
        with database.writing() as connection:
            audit.note(connection, "ann", "", "job.remove", "job-1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [(each.who, each.address, each.action, each.target) for each in audit.list()] == [
        ("ann", "10.0.0.1", "job.submit", "job-1")
    ]
    assert audit.list()[0].at == NOW
    assert audit.list()[0].details == {"kind": "run"}


def test_the_trail_is_read_in_pages_newest_first(database: Database) -> None:
    audit = Audit(database)
    for number in range(5):
        audit.note(None, "ann", "", "job.submit", f"job-{number}")
    first = audit.list(limit=2)
    second = audit.list(limit=2, before=first[-1].number)
    assert [each.target for each in (*first, *second)] == ["job-4", "job-3", "job-2", "job-1"]


def test_a_log_has_no_secret_wherever_it_was_put(store: TokenStore) -> None:
    text = store.add("ann", VIEWER)
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LineFormatter())  # as `dsort serve` sets it
    log = logging.Logger("log")
    log.addHandler(handler)
    log.warning("%s: %d, %s", f"GET /v1/jobs?token={text}", 401, ValueError(text))
    log.warning("%(what)s", {"what": text})
    log.warning(text)
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("it failed")
    said = written.getvalue()
    assert said.count(f"dsort_{text.split('_')[1]}_...") == 5
    assert "401" in said
    assert text.rsplit("_", 1)[1] not in said
