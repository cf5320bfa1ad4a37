"""The law of tokens: the secret is shown once and stored nowhere; a token that is wrong, removed or
expired is refused; roles, buckets and queries say who may see and change what."""

from __future__ import annotations

import hashlib
import io
import logging
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Table, insert, select

from dsort.errors import ConflictError, NotFoundError, SpecError
from dsort.log_lines import LineFormatter
from dsort.service.database import tables
from dsort.service.database.engine import Database, open_database
from dsort.service.database.tables import joined_uris, shown_uris, tokens
from dsort.service.security.audit import Audit
from dsort.service.security.tokens import (
    ADMIN,
    SUBMITTER,
    VIEWER,
    Identity,
    TokenStore,
    checked_buckets,
    matches,
    visible,
)
from dsort.storage.ref import BucketRef
from tests.support.databases import on_both_databases
from tests.support.fake_clock import FakeClock
from tests.support.job_rows import job_row
from tests.support.postgres import PostgresServer
from tests.support.service_here import SPEC, service_here

NOW = 1_000_000.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def store(database: Database, clock: FakeClock) -> TokenStore:
    return TokenStore(database, clock=clock.now)


def test_a_token_is_known_by_its_name_until_it_is_removed(store: TokenStore) -> None:
    assert not store.any()
    reads, writes = ["s3://größe*", "s3://b", "*", "s3://a"], ["s3://out*", "/data/*"]
    text = store.add("ann", SUBMITTER, reads, writes)
    one = Identity("ann", SUBMITTER, tuple(reads), ("s3://out*", "file:///data/*"))
    assert (store.verify(text), store.find("ann")) == (one, one)
    other = store.add("abe", VIEWER, [], ["*"])
    assert store.verify(other) == Identity("abe", VIEWER, (), ("*",))
    assert [each.name for each in store.list()] == ["abe", "ann"]
    assert [each.token_id for each in store.list()] == [
        each.split("_")[1] for each in (other, text)
    ]
    with pytest.raises(ConflictError):
        store.add("ann", ADMIN)
    store.remove("ann")
    assert (store.verify(text), store.find("ann"), store.any()) == (None, None, True)
    again = store.add("ann", ADMIN)
    assert (store.verify(again), store.verify(text)) == (Identity("ann", ADMIN), None)
    for name in ("abe", "ann"):
        store.remove(name)
    assert (store.any(), list(store.list())) == (False, [])
    with pytest.raises(NotFoundError):
        store.remove("ann")


def test_of_the_secret_only_the_sha256_is_kept(
    store: TokenStore, database: Database, tmp_path: Path
) -> None:
    text = store.add("ann", VIEWER)
    store.verify(text)
    secret = text.rsplit("_", 1)[1]
    assert len(secret) * 4 == 192  # random bits: a slow hash would add nothing
    with database.reading() as connection:
        stored = connection.execute(select(tokens.c.digest)).scalar_one()
    assert stored == hashlib.sha256(secret.encode()).digest()
    database.close()
    files = list(tmp_path.iterdir())
    assert files
    for path in files:
        assert secret.encode() not in path.read_bytes()
        assert bytes.fromhex(secret) not in path.read_bytes()


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
def test_a_wrong_token_is_refused(store: TokenStore, wrong: Any) -> None:
    assert store.verify(wrong(store.add("ann", VIEWER))) is None


def test_a_token_expires(store: TokenStore, clock: FakeClock) -> None:
    text = store.add("ann", VIEWER, expires_at=NOW + 30)
    assert store.verify(text)
    assert store.any()
    assert store.find("ann") == Identity("ann", VIEWER)
    clock.seconds += 30
    assert store.verify(text) is None
    assert store.find("ann") is None
    assert not store.any()
    assert [each.name for each in store.list()] == ["ann"]


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
def test_an_impossible_token_is_refused(
    store: TokenStore, name: str, role: str, globs: list[str], expires_at: float | None
) -> None:
    with pytest.raises(SpecError):
        store.add(name, role, globs, expires_at=expires_at)
    assert list(store.list()) == []


def test_what_is_done_is_noted_with_it_or_not_at_all(database: Database, clock: FakeClock) -> None:
    audit = Audit(database, clock=clock.now)
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


URIS = ["s3://a", "s3://A", "s3://a/b", "s3://a%", "s3://a_", "s3://ax", "s3://a!", "s3://a\\%"]
BUCKETS = [
    "s3://a",
    "s3://a%",
    "s3://a_",
    "s3://a!",
    "s3://a\\%",
    "s3://a?*",
    "s3://a*",
    "s3://a_*",
    "s3://a%*",
    "*",
    "s3://*",
]


def job_of(input_uri: str, output_uri: str) -> dict[str, object]:
    row = job_row(f"{input_uri} {output_uri}", input_uri=input_uri, output_uri=output_uri)
    names = tables.jobs.columns.keys()
    return {name: getattr(row, name) for name in names if name != "number"}


def schedule_of(input_uri: str, output_uri: str) -> dict[str, object]:
    buckets = {"input_uri": input_uri, "output_uri": output_uri}
    name = f"{input_uri} {output_uri}"
    row = {"schedule_id": name, "name": name, "owner": "ann", "definition": {}}
    return row | buckets | {"created_at": 0.0, "changed_at": 0.0}


@on_both_databases
@pytest.mark.parametrize(
    ("table", "row_of"), [(tables.jobs, job_of), (tables.schedules, schedule_of)]
)
def test_a_query_finds_rows_of_odd_buckets(database: Database, table: Table, row_of: Any) -> None:
    pairs = [(uri, other) for uri in URIS for other in ("s3://out", uri)]
    with database.writing() as connection:
        connection.execute(insert(table), [row_of(*pair) for pair in pairs])
        for buckets in [[], *([bucket] for bucket in BUCKETS), BUCKETS[:3]]:
            one = Identity("ann", VIEWER, tuple(buckets), ("s3://out", *buckets))
            found = connection.execute(
                select(table.c.input_uri, table.c.output_uri).where(visible(one, table))
            )
            seen = {(row.input_uri, row.output_uri) for row in found}
            assert seen == {pair for pair in pairs if one.may_see(Thing(*pair))}, buckets


def test_names_that_no_column_takes_are_noted_as_far_as_they_go(database: Database) -> None:
    audit = Audit(database)
    audit.note(None, "ä" * 200, "a" * 99, "job.submit", "a\0b\udc80" + "c" * 200, {"x": "\udc80"})
    noted = audit.list()[0]
    assert (len(noted.who), len(noted.address), len(noted.target)) == (128, 64, 128)
    assert noted.target.startswith("a?b?c")
    assert noted.details == {"x": "\\x80"}


def test_a_character_that_no_text_may_have_is_a_mistake_of_its_sender(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with service_here(tmp_path, database_url=postgres.fresh_database()) as here:
        for query in ("owner=%00", "label=%00", "schedule=%00", "text=a%00b"):
            refused = here.client.get(f"/v1/jobs?{query}")
            assert (refused.status_code, refused.json()["type"]) == (400, "urn:dsort:problem:spec")
        assert here.client.post("/v1/jobs?description=%00", json=SPEC).status_code == 400
        assert here.client.get("/v1/jobs").json()["jobs"] == []


def test_while_the_database_is_away_requests_are_to_come_again(tmp_path: Path) -> None:
    with service_here(tmp_path, no_auth=False) as here:
        token = here.service.tokens.add("ann", SUBMITTER)
        here.service.database.close()
        for each in tmp_path.glob("service.db*"):
            each.unlink()
        (tmp_path / "service.db").mkdir()
        away = here.client.get("/v1/jobs", headers={"Authorization": f"Bearer {token}"})
        assert away.status_code == 503
        assert away.json()["type"] == "urn:dsort:problem:database_away"
        assert int(away.headers["Retry-After"]) > 0
        assert here.client.get("/healthz").status_code == 200
        assert here.client.get("/readyz").status_code == 503


NASTY = st.text(alphabet="aA/%_!\\*?é\n", max_size=8)


@dataclass(frozen=True)
class Thing:
    input_uri: str = "s3://in"
    output_uri: str = "s3://out"


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    where: Path = tmp_path_factory.mktemp("identity")
    with open_database(f"sqlite:///{where}/service.db") as opened:
        yield opened


@pytest.mark.parametrize(
    ("bucket", "uri", "fits"),
    [
        ("*", "s3://anything/at/all", True),
        ("s3://team-a", "s3://team-a", True),
        ("s3://team-a", "s3://team-ab", False),
        ("s3://team-a", "s3://team-a/x", False),
        ("s3://team-a/*", "s3://team-a", False),
        ("s3://team-a/*", "s3://team-a/x/y", True),
        ("s3://team-a*", "s3://team-a/x/y", True),
        ("s3://team-a*", "s3://team-a", True),
        ("s3://team-a*", "s3://team-b", False),
        ("s3://[ab]*", "s3://a", False),
        ("s3://[ab]*", "s3://[ab]", True),
        ("s3://a.c*", "s3://abc", False),
        ("s3://a", "S3://A", False),
        ("s3://a*", "x/s3://a", False),
        ("s3://a*", "s3://a\nb", True),
        ("*", "s3://\ud800", False),
    ],
)
def test_a_bucket_is_a_uri_or_how_uris_begin(bucket: str, uri: str, fits: bool) -> None:
    assert matches([bucket], uri) is fits


def test_several_inputs_are_for_those_who_may_read_each() -> None:
    one = Identity("ann", SUBMITTER, ("s3://in*", "s3://more"), ("s3://out",))
    assert one.may_see(Thing(joined_uris(["s3://in", "s3://in/x", "s3://more"])))
    assert not one.may_see(Thing(joined_uris(["s3://in", "s3://others"])))
    assert not one.may_see(Thing(joined_uris(["s3://other", "s3://in"])))
    assert joined_uris(["s3://a", "s3://b", "s3://a"]) == "s3://a\ns3://b"
    assert joined_uris(["file:///a\nb"]) == "file:///a%0Ab"
    assert shown_uris(joined_uris(["s3://a", "s3://b"])) == "s3://a, s3://b"


SEVERAL = st.lists(NASTY, min_size=1, max_size=3).map(joined_uris)


@given(buckets=st.lists(NASTY, max_size=3), uris=st.lists(NASTY | SEVERAL, min_size=1, max_size=6))
def test_a_query_finds_what_may_be_seen(
    lasting: Database, buckets: list[str], uris: list[str]
) -> None:
    one = Identity("ann", VIEWER, tuple(buckets), ("s3://out",))
    with lasting.writing() as connection:
        rows = [
            job_row(str(number), input_uri=uri, output_uri=output, claims=None).values()
            for number, (uri, output) in enumerate(
                (uri, output) for uri in uris for output in ("s3://out", "s3://OUT")
            )
        ]
        connection.execute(insert(tables.jobs), rows)
        found = set(connection.scalars(select(tables.jobs.c.job_id).where(visible(one))))
        connection.rollback()
    assert found == {
        row["job_id"]
        for row in rows
        if one.may_see(Thing(str(row["input_uri"]), str(row["output_uri"])))
    }


@pytest.mark.parametrize("end", ["", "*"])
def test_a_path_stands_for_its_uri(tmp_path: Path, end: str) -> None:
    odd = tmp_path / f"odd {string.punctuation.translate(dict.fromkeys(map(ord, '/*')))}"
    assert matches(checked_buckets([f"{odd}{end}"]), BucketRef("file", str(odd)).uri)
    assert matches(checked_buckets([f"{odd}*"]), BucketRef("file", f"{odd}/bücher").uri)


def test_all_wrong_buckets_are_reported_at_once() -> None:
    wrong = ["images", "", "*a", "s3://*/raw", "s3://**", "s3://a?", "s3://a\0b"]
    wrong.append("s3://" + "a" * 600)
    with pytest.raises(SpecError) as refused:
        checked_buckets(["s3://fine", *wrong], path="input_buckets")
    assert len(refused.value.problems) == len(wrong)
    assert {each.path for each in refused.value.problems} == {"input_buckets"}
    for each in refused.value.problems:
        examples = [text for text in re.findall("'([^']+)'", each.hint) if text != "*"]
        assert matches(checked_buckets(examples), "s3://team-a")
        assert not matches(checked_buckets(examples), "s3://team-abc")  # another team's
