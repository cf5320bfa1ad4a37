"""The law of tokens, audit and what may be seen, the same on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Table, insert, select

from dsort.errors import ConflictError, NotFoundError
from dsort.service.database import tables
from dsort.service.database.engine import Database, open_database
from dsort.service.security.audit import Audit
from dsort.service.security.tokens import SUBMITTER, VIEWER, Identity, TokenStore, visible
from tests.support.databases import on_both_databases
from tests.support.postgres import PostgresServer
from tests.support.service_here import SPEC, service_here

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


@dataclass(frozen=True)
class Thing:
    input_uri: str
    output_uri: str


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with open_database(database_url) as opened:
        yield opened


def job(input_uri: str, output_uri: str) -> dict[str, object]:
    row = tables.JobRow(
        job_id=f"{input_uri} {output_uri}",
        kind="run",
        owner="ann",
        spec={},
        input_uri=input_uri,
        output_uri=output_uri,
        claims=[],
    )
    names = tables.jobs.columns.keys()
    return {name: getattr(row, name) for name in names if name != "number"}


def schedule(input_uri: str, output_uri: str) -> dict[str, object]:
    buckets = {"input_uri": input_uri, "output_uri": output_uri}
    name = f"{input_uri} {output_uri}"
    row = {"schedule_id": name, "name": name, "owner": "ann", "definition": {}}
    return row | buckets | {"created_at": 0.0, "changed_at": 0.0}


@on_both_databases
@pytest.mark.parametrize(("table", "row_of"), [(tables.jobs, job), (tables.schedules, schedule)])
def test_a_query_finds_what_may_be_seen(database: Database, table: Table, row_of: object) -> None:
    assert callable(row_of)
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


def test_a_token_is_made_known_and_removed(database: Database) -> None:
    store = TokenStore(database)
    reads, writes = ["s3://größe*", "s3://b", "*", "s3://a"], ["s3://out"]
    text = store.add("ann", SUBMITTER, reads, writes)
    assert store.verify(text) == Identity("ann", SUBMITTER, tuple(reads), tuple(writes))
    other = store.add("abe", VIEWER, [], ["*"])
    assert store.verify(other) == Identity("abe", VIEWER, (), ("*",))
    assert [each.name for each in store.list()] == ["abe", "ann"]
    store.remove("abe")
    with pytest.raises(ConflictError):
        store.add("ann", VIEWER)
    assert store.any()
    store.remove("ann")
    assert store.verify(text) is None
    assert not store.any()
    with pytest.raises(NotFoundError):
        store.remove("ann")


def test_names_that_no_column_takes_are_noted_as_far_as_they_go(database: Database) -> None:
    audit = Audit(database)
    audit.note(None, "ä" * 200, "a" * 99, "job.submit", "a\0b\udc80" + "c" * 200, {"x": "\udc80"})
    noted = audit.list()[0]
    assert (len(noted.who), len(noted.address), len(noted.target)) == (128, 64, 128)
    assert noted.target.startswith("a?b?c")
    assert noted.details == {"x": "\\x80"}


def test_a_character_that_no_text_may_have_is_a_mistake_of_whoever_sends_it(
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
