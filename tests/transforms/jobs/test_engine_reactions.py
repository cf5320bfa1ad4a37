"""Every reaction of a job, with its default and its alternatives: what is dropped, kept or renamed
is counted and named, and what aborts names shard and record and leaves nothing but a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsort.errors import (
    CorruptShardError,
    DuplicateError,
    MissingShardError,
    ObjectNotFoundError,
    ShardEndError,
    StrayMemberError,
)
from tests.support.datasets import Member, Shard, files_of, payloads_in, read_shard, write_shards
from tests.support.engine import (
    count_of,
    plan_local,
    record,
    records_out,
    refused,
    run_local,
    shard_of,
    spec_of,
)
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import JobReport, VerifyReport
from tests.support.verified import verify_result

pytestmark = pytest.mark.usefixtures("workers_here")

# --- missing_shards ------------------------------------------------------------------------------

TEMPLATE = spec_of(input_format={"template": "in-{000..102}"})


def three_of_103(root: Path) -> None:
    write_shards(
        root / "in",
        {"in-000.tar": shard_of("a"), "in-050.tar": shard_of("b"), "in-102.tar": shard_of("c")},
    )


@pytest.mark.parametrize("reaction", [None, "warn", "ignore"])
def test_missing_shards_are_counted_exactly(reaction: str | None, tmp_path: Path) -> None:
    three_of_103(tmp_path)
    report = run_local(tmp_path, TEMPLATE | {"Config": {"missing_shards": reaction}})
    count, names = count_of(report, "missing_shards")
    assert count == 100
    assert names[:2] == ("in-001.tar", "in-002.tar")
    assert bool(report.warnings) is (reaction != "ignore")
    assert records_out(tmp_path) == ["a.jpg", "b.jpg", "c.jpg"]


def test_a_template_without_a_range_is_that_one_shard(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"s-00.tar": shard_of("a"), "s-01.tar": shard_of("b")})
    run_local(tmp_path, spec_of(input_format={"template": "s-01"}))
    assert records_out(tmp_path) == ["b.jpg"]
    with refused(tmp_path, MissingShardError, "s-.tar", '{"prefix": "s-"}'):
        run_local(tmp_path, spec_of(input_format={"template": "s-"}))


def test_names_of_a_list_are_taken_as_they_are(tmp_path: Path) -> None:
    shards = {"s-00": shard_of("bare"), "s-00.tar": shard_of("a"), "s-01.tar": shard_of("b")}
    write_shards(tmp_path / "in", shards)
    run_local(tmp_path, spec_of(input_format={"objnames": ["s-00", "s-01.tar"]}))
    assert records_out(tmp_path) == ["bare.jpg", "b.jpg"]
    with refused(tmp_path, MissingShardError, "s-01", 'write "s-01.tar"'):
        run_local(tmp_path, spec_of(input_format={"objnames": ["s-01"]}))


def test_missing_shards_may_abort(tmp_path: Path) -> None:
    three_of_103(tmp_path)
    with refused(tmp_path, MissingShardError, "100 input shards", "in-001.tar", "missing_shards"):
        run_local(tmp_path, TEMPLATE | {"Config": {"missing_shards": "abort"}})


@pytest.mark.parametrize(
    "inputs",
    [
        {"template": "x-{0..9}"},
        {"objnames": ["x.tar"]},
        {"prefix": "x"},
        {"glob": "x*.tar"},
    ],
    ids=lambda inputs: next(iter(inputs)),
)
def test_no_input_at_all_is_an_error(inputs: dict[str, object], tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": shard_of("a")})
    with refused(tmp_path, MissingShardError, "x", "dsort ls"):
        run_local(tmp_path, spec_of(input_format=inputs))


def test_no_input_bucket_is_an_error(tmp_path: Path) -> None:
    with refused(tmp_path, ObjectNotFoundError, "--root"):
        run_local(tmp_path, spec_of())


# --- duplicated_records --------------------------------------------------------------------------

REPEATED = Shard((*record("a", payload=b"old"), *record("a", payload=b"new"), *record("b")))


@pytest.mark.parametrize("reaction", ["warn", "ignore"])
def test_of_a_repeated_member_the_last_one_wins(reaction: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": REPEATED})
    report = run_local(tmp_path, spec_of(Config={"duplicated_records": reaction}))
    found = read_shard(files_of(tmp_path / "out")["out-0.tar"])
    assert [(m.name, m.payload) for m in found] == [("a.jpg", b"new"), ("b.jpg", b"b.jpg")]
    assert count_of(report, "duplicated_records") == (1, ("in.tar: a.jpg",))
    assert any("a.jpg" in text for text in report.warnings) is (reaction != "ignore")


def test_a_repeated_member_aborts_where_the_spec_says_so(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": REPEATED})
    with refused(tmp_path, DuplicateError, "in.tar: a.jpg", "duplicated_records"):
        run_local(tmp_path, spec_of(Config={"duplicated_records": "abort"}))


@pytest.mark.parametrize("settled", ["warn", "rename", "drop", "ignore"])
@pytest.mark.parametrize(
    "names",
    [["a.jpg", "b.jpg", "a.jpg"], ["README", "b.jpg", "README"], ["a.jpg", "a.cls", "a.jpg"]],
)
def test_members_of_one_name_abort_wherever_they_are_in_the_shard(
    names: list[str], settled: str, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", {"in.tar": Shard(tuple(Member(name, b"x") for name in names))})
    spec = spec_of(Config={"duplicated_records": "abort", "duplicate_keys": settled})
    with refused(tmp_path, DuplicateError, f"in.tar: {names[0]}", "duplicated_records"):
        run_local(tmp_path, spec)


@pytest.mark.parametrize("move", ["map", "spill"])
def test_a_member_that_comes_again_begins_another_record(move: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": REPEATED})
    report = run_local(tmp_path, spec_of(verify="content"), move=move)
    found = read_shard(files_of(tmp_path / "out")["out-0.tar"])
    assert [m.payload for m in found] == [b"old", b"new", b"b.jpg"]
    assert report.records == 3
    assert count_of(report, "duplicate_keys") == (1, ("in.tar: a",))
    assert verified_again(tmp_path, report).problem_count == 0


# --- records of one shard that have one key ------------------------------------------------------

APART = Shard(
    (
        *record("a", "jpg", "cls", payload=b"first"),
        *record("b", "jpg", "cls"),
        *record("a", "jpg", "cls", payload=b"second"),
        *record("c", "jpg"),
        *record("c2", "jpg"),
        *record("c", "cls"),
    )
)


def verified_again(root: Path, report: JobReport) -> VerifyReport:
    return verify_result(root, report.job_id)


@pytest.mark.parametrize("move", ["map", "spill"])
def test_groups_of_one_key_that_collide_are_records_of_their_own(move: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": APART})
    report = run_local(tmp_path, spec_of(verify="content"), move=move)
    assert records_out(tmp_path) == ["a.jpg", "a.cls", "b.jpg", "b.cls", "a.jpg", "a.cls",
                                     "c.jpg", "c.cls", "c2.jpg"]  # fmt: skip
    assert report.records == 5
    assert count_of(report, "duplicate_keys") == (1, ("in.tar: a",))
    assert count_of(report, "duplicated_records")[0] == 0
    verified = verified_again(tmp_path, report)
    assert (verified.problem_count, verified.records) == (0, 5)


@pytest.mark.parametrize("reaction", ["drop", "rename", "abort"])
def test_records_of_one_shard_and_key_are_settled_as_duplicates(
    reaction: str, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", {"in.tar": APART})
    spec = spec_of(Config={"duplicate_keys": reaction})
    if reaction == "abort":
        with refused(tmp_path, DuplicateError, "1 record ", "in.tar: a", "duplicate_keys"):
            run_local(tmp_path, spec)
        return
    report = run_local(tmp_path, spec)
    second = ["a-1.jpg", "a-1.cls"] if reaction == "rename" else []
    assert records_out(tmp_path) == ["a.jpg", "a.cls", "b.jpg", "b.cls", *second,
                                     "c.jpg", "c.cls", "c2.jpg"]  # fmt: skip
    verified = verified_again(tmp_path, report)
    assert verified.problem_count == 0


# --- duplicate_keys ------------------------------------------------------------------------------

DUPLICATES = {
    "in-0.tar": Shard((*record("a", "jpg", "cls"), *record("b"), Member("README", b"0"))),
    "in-1.tar": Shard((*record("c"), *record("a", "jpg", "txt"), Member("README", b"1"))),
    "in-2.tar": Shard((*record("a-1"), *record("a"), Member("README-1", b"taken"))),
}
ALL = ["a.jpg", "a.cls", "b.jpg", "README", "c.jpg", "a.jpg", "a.txt", "README", "a-1.jpg", "a.jpg",
       "README-1"]  # fmt: skip
SAMPLES = ("in-1.tar: a", "in-1.tar: README", "in-2.tar: a")


@pytest.mark.parametrize("reaction", [None, "warn", "ignore"])
def test_duplicate_keys_may_be_let_be(reaction: str | None, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DUPLICATES)
    config = {"duplicate_keys": reaction} if reaction else {}
    report = run_local(tmp_path, spec_of(Config=config))
    assert records_out(tmp_path) == ALL
    counted = count_of(report, "duplicate_keys")
    assert counted == ((0, ()) if reaction == "ignore" else (3, SAMPLES))
    assert bool(report.warnings) is (reaction != "ignore")


def test_duplicate_keys_may_abort(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DUPLICATES)
    with refused(tmp_path, DuplicateError, "3 records", "in-1.tar: a", "duplicate_keys: rename"):
        run_local(tmp_path, spec_of(Config={"duplicate_keys": "abort"}))


@pytest.mark.parametrize("move", ["map", "spill"])
def test_duplicate_keys_may_be_dropped(move: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DUPLICATES)
    report = run_local(tmp_path, spec_of(Config={"duplicate_keys": "drop"}), move=move, workers=2)
    assert records_out(tmp_path) == [
        "a.jpg", "a.cls", "b.jpg", "README", "c.jpg", "a-1.jpg", "README-1",
    ]  # fmt: skip
    assert count_of(report, "duplicate_keys_dropped") == (3, SAMPLES)
    assert report.records == 6


@pytest.mark.parametrize("move", ["map", "spill"])
def test_duplicate_keys_may_be_renamed(move: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DUPLICATES)
    report = run_local(tmp_path, spec_of(Config={"duplicate_keys": "rename"}), move=move, workers=2)
    assert records_out(tmp_path) == [
        "a.jpg", "a.cls", "b.jpg", "README", "c.jpg", "a-2.jpg", "a-2.txt", "README-2", "a-1.jpg",
        "a-3.jpg", "README-1",
    ]  # fmt: skip
    assert count_of(report, "duplicate_keys_renamed") == (
        3,
        ("in-1.tar: a → a-2", "in-1.tar: README → README-2", "in-2.tar: a → a-3"),
    )
    payloads = [payload for _, payload in payloads_in(tmp_path / "out")]
    assert sorted(payloads) == sorted(m.payload for s in DUPLICATES.values() for m in s.members)


def test_a_renamed_record_keeps_all_else_of_its_headers(tmp_path: Path) -> None:
    shards = {
        "in-0.tar": Shard(tuple(Member(f"{n}.jpg", b"x") for n in "abc")),
        "in-1.tar": Shard(
            (
                Member("a.jpg", b"1", form="pax"),
                Member("b.jpg", b"2" * 600, form="gnu"),
                Member("c.jpg", b"", form="ustar"),
                Member("c.jpg", b"3", form="ustar"),
            )
        ),
    }
    write_shards(tmp_path / "in", shards)
    config = {"duplicate_keys": "rename", "duplicated_records": "warn"}
    run_local(tmp_path, spec_of(Config=config))
    found = [m for data in files_of(tmp_path / "out").values() for m in read_shard(data)]
    # Made anew under the new name, each is what was written.
    wanted = [
        Member("a-1.jpg", b"1", form="pax"),
        Member("b-1.jpg", b"2" * 600, form="gnu"),
        Member("c-1.jpg", b"3", form="ustar"),
    ]
    assert [m.meaning for m in found[3:]] == [(m.name, m.payload, "file") for m in wanted]
    assert [m.raw[-1024:] for m in found[4:]] == [m.raw[-1024:] for m in wanted[1:]]


# --- corrupt_shards ------------------------------------------------------------------------------

WHOLE = Shard((*record("a"), *record("b", payload=b"b" * 1500), *record("c", "txt")))


def test_a_corrupt_shard_aborts_and_says_where(tmp_path: Path) -> None:
    data = bytearray(WHOLE.data)
    data[1024 + 3] ^= 1
    write_shards(tmp_path / "in", {"in-0.tar": shard_of("x"), "in-1.tar": bytes(data)})
    words = ("in-1.tar", "byte 1024", "checksum", "corrupt_shards: skip")
    with refused(tmp_path, CorruptShardError, *words):
        run_local(tmp_path, spec_of())


def test_a_corrupt_shard_may_be_left_out(tmp_path: Path) -> None:
    shards = {"in-0.tar": shard_of("x"), "in-1.tar": WHOLE.data[:2000], "in-2.tar": shard_of("y")}
    write_shards(tmp_path / "in", shards)
    report = run_local(tmp_path, spec_of(Config={"corrupt_shards": "skip"}))
    assert records_out(tmp_path) == ["x.jpg", "y.jpg"]
    count, samples = count_of(report, "corrupt_shards")
    assert count == 1
    assert "in-1.tar" in samples[0]
    manifest = json.loads((tmp_path / "out" / str(report.manifest_name)).read_text())
    assert [each["records"] for each in manifest["inputs"]] == [1, 0, 1]


PLACES = [*range(0, len(WHOLE.data) + 1, 512), 100, 1500, len(WHOLE.data) - 1]
# Between members, and in the end marker: all members before are whole.
UNENDED = {0: "", 1024: "a", 3072: "ab", 4096: "abc", 4608: "abc", len(WHOLE.data) - 1: "abc"}


@pytest.mark.parametrize("reaction", ["warn", "ignore"])
def test_what_can_be_read_of_incomplete_shards_may_be_taken(reaction: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {f"cut-{at:05d}.tar": WHOLE.data[:at] for at in PLACES})
    config = {"corrupt_shards": "skip", "duplicate_keys": "ignore", "incomplete_shards": reaction}
    report = run_local(tmp_path, spec_of(Config=config))
    count, samples = count_of(report, "incomplete_shards")
    assert count == len(UNENDED)
    assert [name.partition(" (")[0] for name in samples] == [f"cut-{at:05d}.tar" for at in UNENDED]
    assert "end-of-archive marker is missing" in samples[1]
    assert any("may not be whole" in text for text in report.warnings) is (reaction == "warn")
    assert count_of(report, "corrupt_shards")[0] == len(PLACES) - len(UNENDED) - 1
    keys = [name.partition(".")[0] for name in records_out(tmp_path)]
    assert keys == [*"".join([*UNENDED.values(), "abc"])]


INCOMPLETE = {
    "no bytes": b"",
    "zeros": bytes(10240),
    "no end marker": WHOLE.data[:-1024],
    "half an end marker": WHOLE.data[:-512],
    "no end marker, in the middle of a record": Shard(tuple(record("a", "jpg", "cls"))).data[:1024],
    "a zeroed tail": WHOLE.data[:3072] + bytes(100_352),
    "two mebibytes of padding": WHOLE.data.ljust(2 << 20, b"\0"),
    "data that is no tar": WHOLE.data + b"x" * 512,
}


@pytest.mark.parametrize("what", INCOMPLETE)
def test_an_incomplete_shard_aborts(what: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in-0.tar": shard_of("x"), "in-1.tar": INCOMPLETE[what]})
    words = ("in-1.tar", "may not be whole", "incomplete_shards: warn")
    for more in ({}, {"corrupt_shards": "skip"}):
        with refused(tmp_path, ShardEndError, *words):
            run_local(tmp_path, spec_of(Config=more))
    with pytest.raises(ShardEndError, match=r"in-1\.tar"):
        plan_local(tmp_path, spec_of())


@pytest.mark.parametrize("moved", [Moved("map"), Moved("spill", buffer_bytes=3072, partitions=2)])
@pytest.mark.parametrize("padded", [False, True])
def test_tars_one_after_the_other_are_read(padded: bool, moved: Moved, tmp_path: Path) -> None:
    first, second = Shard((*record("a"), *record("b"))), Shard((*record("c"), *record("a")))
    data = first.data.ljust(10240 if padded else 0, b"\0") + second.data
    write_shards(tmp_path / "in", {"in.tar": data})
    report = run_inline(spec_of(), tmp_path, moved)
    assert records_out(tmp_path) == ["a.jpg", "b.jpg", "c.jpg", "a.jpg"]
    assert count_of(report, "concatenated_shards") == (1, ("in.tar",))
    assert any("one after the other" in text for text in report.warnings)
    assert verified_again(tmp_path, report).problem_count == 0


def test_tars_one_after_the_other_may_abort(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": shard_of("a").data + shard_of("b").data})
    with refused(tmp_path, ShardEndError, "in.tar is 2 tars", "concatenated_shards: read"):
        run_local(tmp_path, spec_of(Config={"concatenated_shards": "abort"}))


def test_a_hard_link_into_nowhere_is_corrupt(tmp_path: Path) -> None:
    link = Member("b.jpg", kind="hardlink", target="gone.jpg")
    write_shards(tmp_path / "in", {"in.tar": Shard((*record("a"), link))})
    with refused(tmp_path, CorruptShardError, "in.tar", "b.jpg", "gone.jpg"):
        run_local(tmp_path, spec_of())


# --- stray_members -------------------------------------------------------------------------------

STRAYS = Shard(
    (
        Member("d", kind="directory"),
        *record("a"),
        Member("README", b"read me"),
        Member("d/.hidden", b"hidden"),
        Member("a.link", kind="symlink", target="a.jpg"),
        Member("link", kind="symlink", target="a.jpg"),
        Member("pipe", kind="fifo"),
    )
)


def test_strays_are_kept_but_for_directories_and_devices(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": STRAYS})
    report = run_local(tmp_path, spec_of())
    assert records_out(tmp_path) == ["a.jpg", "a.link", "README", "d/.hidden", "link"]
    assert count_of(report, "stray_members_dropped") == (2, ("in.tar: d/", "in.tar: pipe"))
    assert count_of(report, "stray_members_kept") == (
        3,
        ("in.tar: README", "in.tar: d/.hidden", "in.tar: link"),
    )
    assert any("pipe" in text for text in report.warnings)


def test_strays_may_be_dropped(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": STRAYS})
    report = run_local(tmp_path, spec_of(Config={"stray_members": "drop"}))
    assert records_out(tmp_path) == ["a.jpg"]
    assert count_of(report, "stray_members_dropped")[0] == 6
    assert count_of(report, "stray_members_kept")[0] == 0


@pytest.mark.parametrize("stray", STRAYS.members[:1] + STRAYS.members[2:], ids=lambda m: m.kind)
def test_strays_may_abort(stray: Member, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": Shard((*record("a"), stray))})
    with refused(tmp_path, StrayMemberError, "in.tar", stray.name, "stray_members"):
        run_local(tmp_path, spec_of(Config={"stray_members": "abort"}))
