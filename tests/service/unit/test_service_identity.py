"""The law of who may do what: roles in their order, buckets that are whole URIs or how URIs begin,
and a query that finds just what may be seen."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, select

from dsort.errors import SpecError
from dsort.service.database import tables
from dsort.service.database.engine import Database, open_database
from dsort.service.database.tables import joined_uris, shown_uris
from dsort.service.security.tokens import (
    ADMIN,
    ANYONE,
    ROLES,
    SUBMITTER,
    VIEWER,
    Identity,
    checked_buckets,
    matches,
    visible,
)
from dsort.storage.ref import BucketRef

NASTY = st.text(alphabet="aA/%_!\\*?é\n", max_size=8)


@dataclass(frozen=True)
class Thing:
    input_uri: str = "s3://in"
    output_uri: str = "s3://out"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
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


def test_no_bucket_is_for_nothing() -> None:
    assert not matches([], "s3://a")
    assert not Identity("ann", VIEWER, (), ()).may_see(Thing())


@pytest.mark.parametrize("role", ROLES)
def test_each_role_may_do_what_those_before_it_may(role: str) -> None:
    one = Identity("ann", role)
    assert [one.at_least(each) for each in ROLES] == [
        ROLES.index(each) <= ROLES.index(role) for each in ROLES
    ]


@pytest.mark.parametrize(
    ("role", "own", "others"),
    [(VIEWER, False, False), (SUBMITTER, True, False), (ADMIN, True, True)],
)
def test_who_may_change_what(role: str, own: bool, others: bool) -> None:
    one = Identity("ann", role)
    assert (one.may_change("ann"), one.may_change("bob")) == (own, others)
    assert one.may_see(Thing())
    assert one.at_least(SUBMITTER) is (role != VIEWER)


def test_input_and_output_are_apart() -> None:
    one = Identity("ann", SUBMITTER, ("s3://in*",), ("s3://out*",))
    assert one.may_see(Thing())
    assert not one.may_see(Thing("s3://out", "s3://in"))
    assert not one.may_see(Thing(output_uri="s3://in"))
    assert not one.may_see(Thing(input_uri="s3://out"))
    assert (one.may_read("s3://in"), one.may_write("s3://in")) == (True, False)


def test_a_service_that_asks_nobody_lets_everybody_do_all() -> None:
    assert ANYONE.at_least(ADMIN)
    assert ANYONE.may_see(Thing())


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
    database: Database, buckets: list[str], uris: list[str]
) -> None:
    one = Identity("ann", VIEWER, tuple(buckets), ("s3://out",))
    with database.writing() as connection:
        rows = [
            tables.JobRow(
                job_id=str(number),
                kind="run",
                owner="ann",
                spec={},
                input_uri=uri,
                output_uri=output,
                claims=None,
            ).values()
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


def test_paths_and_repetitions_of_users_are_put_right() -> None:
    assert checked_buckets(["/data/größe 1/*", "s3://a/*", "s3://a/*", "*"]) == (
        "file:///data/größe 1/*",
        "s3://a/*",
        "*",
    )


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
