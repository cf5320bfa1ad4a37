"""Datasets of the Hugging Face Hub are read at one commit, by ranges, and the token of the user is
sent to the Hub alone; replies that cannot be are refused with the name of the object."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsort.errors import (
    ChangedInputError,
    DsortError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
)
from dsort.retry import RetryPolicy
from dsort.storage.bucket import ObjectInfo
from dsort.storage.hub import HubBucket, hub_token
from dsort.storage.limit import StoreLimits
from dsort.storage.open import fixed_ref
from dsort.storage.ref import BucketRef
from dsort.storage.transport import Transport
from tests.support.fake_clock import FakeClock
from tests.support.hub_server import PAGE_ENTRIES, TOKEN, Hub
from tests.support.object_stores import SMALL
from tests.support.refusals import raises

REPO = "lab/images"
FILES = {
    **{f"train/a-{number}.tar": bytes([number]) * (300 * number + 90) for number in range(9)},
    "train/b c+%41#1?.tar": b"odd" * 100,
    "train/日本.tar": b"x" * 500,
    "train.txt": b"beside",
    "README.md": b"small",
    "empty": b"",
}
ONCE = replace(SMALL, tries_max=1)


@pytest.fixture
def commit(hub: Hub) -> str:
    return hub.commit(REPO, FILES)


def bucket_of(hub: Hub, path: str = REPO, limits: StoreLimits = ONCE) -> HubBucket:
    return HubBucket(BucketRef("hf", f"datasets/{path}", hub.endpoint_url), limits)


def patient(hub: Hub, clock: FakeClock) -> HubBucket:
    policy = RetryPolicy(clock=clock.now, sleep=clock.sleep, uniform=lambda low, high: high)
    ref = BucketRef("hf", f"datasets/{REPO}", hub.endpoint_url)
    return HubBucket(ref, SMALL, Transport(SMALL, policy=policy))


# --- reading --------------------------------------------------------------------------------------


def test_a_listing_has_all_pages_of_the_commit(hub: Hub, commit: str) -> None:
    bucket = bucket_of(hub)
    listed = list(bucket.list())
    assert {each.name: each.size_bytes for each in listed} == {
        name: len(data) for name, data in FILES.items()
    }
    assert [each.name for each in listed] == sorted(FILES, key=str.encode)
    assert len(hub.requests("tree")) > len(FILES) // PAGE_ENTRIES
    assert all(f"/tree/{commit}" in each["path"] for each in hub.requests("tree"))
    assert [bucket.stat(each.name) for each in listed] == listed


@pytest.mark.parametrize("prefix", ["", "a-1", "b c", "none"])
def test_a_prefix_of_the_bucket_and_of_names_is_kept(hub: Hub, commit: str, prefix: str) -> None:
    found = [each.name for each in bucket_of(hub, f"{REPO}@main/train").list(prefix)]
    inside = (name.removeprefix("train/") for name in FILES if name.startswith("train/"))
    assert found == sorted((name for name in inside if name.startswith(prefix)), key=str.encode)


def test_a_bucket_in_a_folder_that_is_not_there_cannot_be_listed(hub: Hub, commit: str) -> None:
    with raises(ObjectNotFoundError, "nowhere", hint=f"hf://datasets/{REPO}"):
        list(bucket_of(hub, f"{REPO}/nowhere").list())
    assert list(bucket_of(hub, REPO).list("nowhere/")) == []
    assert list(bucket_of(hub, f"{REPO}/train").list("nowhere/")) == []


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_whole_and_by_ranges(hub: Hub, commit: str, name: str) -> None:
    bucket, data = bucket_of(hub), FILES[name]
    assert bucket.read(name) == data
    info = next(each for each in bucket.list(name) if each.name == name)
    with bucket.open(name) as opened:
        assert opened.info == info
        piece = memoryview(bytearray(len(data) // 3))
        opened.read_into(piece, len(data) // 2)
        assert piece == data[len(data) // 2 :][: len(piece)]
    pinned = bucket.pinned(info)
    for start in range(0, len(data) - 9, 70):
        pinned.read_into(piece := memoryview(bytearray(9)), start)
        assert piece == data[start : start + 9]


def test_large_reads_are_ranges_at_once(hub: Hub) -> None:
    data = bytes(range(256)) * (40 << 10)
    hub.commit("lab/large", {"a.tar": data})
    bucket = bucket_of(hub, "lab/large")
    with bucket.open("a.tar") as opened:
        opened.read_into(whole := memoryview(bytearray(len(data))), 0)
    assert whole == data
    assert len(hub.requests("data")) == 3
    assert len(hub.requests("resolve")) <= 3


def test_a_missing_file_is_not_found(hub: Hub, commit: str) -> None:
    for door in (bucket_of(hub).stat, bucket_of(hub).open, bucket_of(hub).read):
        with raises(ObjectNotFoundError, f"a-9.tar in bucket hf://datasets/{REPO}"):
            door("a-9.tar")


def test_the_address_of_a_file_is_asked_for_once_while_it_holds(hub: Hub, commit: str) -> None:
    bucket = bucket_of(hub)
    pinned = bucket.pinned(bucket.stat("train/a-8.tar"))
    hub.forget_requests()
    piece = memoryview(bytearray(10))
    for start in range(5):
        pinned.read_into(piece, start)
    assert (len(hub.requests("resolve")), len(hub.requests("data"))) == (1, 5)
    hub.misbehave(expired=1)
    pinned.read_into(piece, 7)
    assert piece == b"\x08" * 10
    assert (len(hub.requests("resolve")), len(hub.requests("data"))) == (2, 7)


def test_an_old_revision_is_read_by_its_name(hub: Hub, commit: str) -> None:
    hub.commit(REPO, {"train/a-1.tar": b"old"}, revision="v1.0")
    hub.commit(REPO, {"x.parquet": b"made"}, revision="refs/convert/parquet")
    assert bucket_of(hub, f"{REPO}@v1.0").read("train/a-1.tar") == b"old"
    assert bucket_of(hub, f"{REPO}@refs/convert/parquet").read("x.parquet") == b"made"
    assert bucket_of(hub, f"{REPO}@{commit}").read("README.md") == b"small"
    with raises(ObjectNotFoundError, "revision v2.0", hint="@"):
        bucket_of(hub, f"{REPO}@v2.0").exists()


# --- one commit -----------------------------------------------------------------------------------


def test_a_bucket_stays_at_its_commit_in_other_processes_too(hub: Hub, commit: str) -> None:
    bucket = bucket_of(hub)
    listed = list(bucket.list("train/"))
    hub.commit(REPO, {"train/a-8.tar": b"other" * 100})
    again = pickle.loads(pickle.dumps(bucket))
    assert list(again.list("train/")) == listed
    assert again.read("train/a-8.tar") == FILES["train/a-8.tar"]
    assert bucket_of(hub).read("train/a-8.tar") == b"other" * 100


def test_the_reference_of_a_commit_is_that_of_the_present_one(hub: Hub, commit: str) -> None:
    ref = BucketRef("hf", f"datasets/{REPO}/train", hub.endpoint_url)
    fixed = fixed_ref(ref, ONCE)
    assert fixed == replace(ref, path=f"datasets/{REPO}@{commit}/train")
    hub.forget_requests()
    assert fixed_ref(fixed, ONCE) == fixed
    assert hub.requests() == []


def test_a_file_that_changed_is_no_longer_the_one_that_was_listed(hub: Hub, commit: str) -> None:
    before = bucket_of(hub).stat("train/a-8.tar")
    same_size = b"y" * before.size_bytes
    hub.commit(REPO, {**FILES, "train/a-8.tar": same_size})
    with pytest.raises(ChangedInputError, match=r"train/a-8\.tar in bucket hf://"):
        bucket_of(hub).pinned(before).read_into(memoryview(bytearray(5)), 0)
    same = bucket_of(hub).stat("train/a-7.tar")
    bucket_of(hub).pinned(same).read_into(memoryview(bytearray(5)), 0)


def test_a_known_address_is_not_used_for_another_content(hub: Hub, commit: str) -> None:
    before = bucket_of(hub).stat("train/a-8.tar")
    hub.commit(REPO, {**FILES, "train/a-8.tar": b"y" * before.size_bytes})
    bucket = bucket_of(hub)
    assert bucket.read("train/a-8.tar") == b"y" * before.size_bytes
    with pytest.raises(ChangedInputError):
        bucket.pinned(before).read_into(memoryview(bytearray(5)), 0)


# --- the token ------------------------------------------------------------------------------------


def test_the_token_is_sent_to_the_hub_alone(hub: Hub, commit: str) -> None:
    bucket = bucket_of(hub)
    for info in bucket.list():
        bucket.read(info.name)
    by_kind = {kind: {each["token"] for each in hub.requests(kind)} for kind in ("tree", "data")}
    assert by_kind == {"tree": {TOKEN}, "data": {""}}


def test_an_endpoint_that_a_spec_sets_gets_no_token(
    hub: Hub, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    assert bucket_of(hub).read("README.md") == b"small"
    assert {each["token"] for each in hub.requests()} == {""}


def test_the_token_is_that_of_the_variable_or_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = "https://huggingface.co"
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_ENDPOINT", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub_token(home) == ""
    for name, at in [
        (None, tmp_path / ".cache/huggingface/token"),
        ("XDG_CACHE_HOME", tmp_path / "xdg/huggingface/token"),
        ("HF_HOME", tmp_path / "home/token"),
        ("HF_TOKEN_PATH", tmp_path / "elsewhere"),
    ]:
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(f"hf_{at.name}{name}\n")
        if name is not None:
            up = {"XDG_CACHE_HOME": at.parent.parent, "HF_HOME": at.parent, "HF_TOKEN_PATH": at}
            monkeypatch.setenv(name, str(up[name]))
        assert hub_token(home) == f"hf_{at.name}{name}"
    monkeypatch.setenv("HF_TOKEN", " hf_variable ")
    assert hub_token(home) == "hf_variable"
    assert hub_token("http://huggingface.co") == hub_token("https://other.example") == ""
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example/")
    assert hub_token("http://hub.example") == ""  # it would be readable on the way
    monkeypatch.setenv("HF_TOKEN", "hf_two\nlines")
    assert hub_token(home) == ""


def test_a_user_without_a_home_reads_without_a_token(
    hub: Hub, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as in a container with any user id
    assert bucket_of(hub).read("README.md") == b"small"
    assert {each["token"] for each in hub.requests()} == {""}


@pytest.mark.parametrize("name", ["HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME"])
def test_a_tilde_in_the_path_of_the_token_is_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for other in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    at = {"HF_TOKEN_PATH": "mine", "HF_HOME": "mine/token"}.get(name, "mine/huggingface/token")
    (tmp_path / at).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / at).write_text("hf_mine")
    monkeypatch.setenv(name, "~/mine")
    assert hub_token("https://huggingface.co") == "hf_mine"


@pytest.mark.parametrize("written", ["HTTPS://Hub.example//", "https://hub.example"])
def test_the_endpoint_of_the_variable_gets_the_token_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", written)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert hub_token("https://hub.example") == TOKEN
    assert hub_token("https://hub.example.org") == ""


def test_no_error_and_no_line_has_the_token_or_a_signed_address(
    hub: Hub, commit: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    info = bucket_of(hub).stat("train/a-8.tar")
    for faults in (
        {"busy": 9}, {"broken": 9}, {"expired": 9}, {"loop": True}, {"shorter_by": 3},
        {"moved_to": "http://203.0.113.7/a?X-Sig=s"}, {"moved_to": "https://[/?X-Sig=s"},
        {"commit": "0" * 40}, {"next_page": "https://hub.example/?X-Sig=s"}, {"no_ranges": True},
    ):  # fmt: skip
        hub.misbehave(**faults)
        with pytest.raises(DsortError) as caught:
            list_and_read(bucket_of(hub), info)
        text = "".join(traceback.format_exception(caught.value))
        assert TOKEN not in text
        assert "X-Sig" not in text
    own = "".join(each.getMessage() for each in caplog.records if each.name.startswith("dsort"))
    assert own
    assert TOKEN not in own
    assert "X-Sig" not in own


def list_and_read(bucket: HubBucket, info: ObjectInfo) -> None:
    list(bucket.list())
    bucket.pinned(info).read_into(memoryview(bytearray(9)), 5)


# --- access and limits ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "named"),
    [({"gated": True}, "gated"), ({"private": True}, "private")],
)
def test_a_dataset_behind_a_token_says_so(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, facts: dict[str, bool], named: str
) -> None:
    hub.commit("lab/closed", FILES, **facts)
    assert bucket_of(hub, "lab/closed").read("README.md") == b"small"
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN_PATH", "/dev/null")
    with raises(StorageAccessError, named, "bucket hf://datasets/lab/closed", hint="HF_TOKEN"):
        bucket_of(hub, "lab/closed").exists()


@pytest.mark.parametrize(("token", "hint"), [("", "; workers"), ("hf_old", "(HF_TOKEN, or ")])
def test_the_hint_knows_whether_a_token_was_sent(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str, hint: str
) -> None:
    hub.commit("lab/closed", FILES, private=True)
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setenv("HF_TOKEN_PATH", "/dev/null")
    with raises(StorageAccessError, "hf://datasets/lab/closed", hint=hint):
        bucket_of(hub, "lab/closed").exists()


def test_a_dataset_that_is_not_there_is_reported(hub: Hub) -> None:
    with raises(StorageAccessError, "bucket hf://datasets/lab/none", hint="HF_TOKEN"):
        list(bucket_of(hub, "lab/none").list())


def test_a_full_window_of_requests_is_waited_for(hub: Hub, commit: str) -> None:
    clock = FakeClock()
    hub.misbehave(busy=2)
    assert patient(hub, clock).read("README.md") == b"small"
    assert clock.slept == [41.0, 41.0]


def test_a_hub_that_fails_is_asked_again(hub: Hub, commit: str) -> None:
    clock = FakeClock()
    hub.misbehave(broken=3)
    assert patient(hub, clock).read("train/a-8.tar") == FILES["train/a-8.tar"]
    assert len(clock.slept) == 3


def test_a_read_that_breaks_off_is_continued_where_it_stopped(hub: Hub, commit: str) -> None:
    clock = FakeClock()
    hub.misbehave(cut=2)
    assert patient(hub, clock).read("train/a-8.tar") == FILES["train/a-8.tar"]
    assert len(clock.slept) == 2
    starts = [int(each["range"][6:].partition("-")[0] or 0) for each in hub.requests("data")]
    assert starts == sorted(set(starts))


def test_a_hub_that_is_gone_is_transient() -> None:
    ref = BucketRef("hf", f"datasets/{REPO}", "http://127.0.0.1:9")
    gone = HubBucket(ref, ONCE)
    for ask in (gone.exists, lambda: fixed_ref(ref, ONCE)):
        with raises(StorageError, ref.uri, hint="dsort resume") as caught:
            ask()
        assert str(caught.value).count(ref.uri) == 1  # the reason does not repeat what is asked
    with raises(StorageError, f"a in bucket hf://datasets/{REPO}", hint="dsort resume"):
        gone.read("a")


# --- enemies --------------------------------------------------------------------------------------


def entry(path: str, size: object = 300, **more: object) -> dict[str, object]:
    return {"type": "file", "path": path, "oid": "0" * 40, "size": size, **more}


@pytest.mark.parametrize(
    ("listing", "named"),
    [
        ([entry("a/../../b.tar")], "b.tar"),
        ([entry("../a.tar")], "a.tar"),
        ([entry("/etc/passwd")], "/etc/passwd"),
        ([entry("a//b.tar")], "a//b.tar"),
        ([entry("a\0.tar")], "a"),
        ([entry("a.tar", -1)], "a.tar"),
        ([entry("a.tar", 1 << 70)], "a.tar"),
        ([entry("a.tar", 5, lfs={"oid": "0" * 64, "size": -5})], "a.tar"),
        (
            [entry("a.tar"), entry("a.tar")],
            f"a.tar in bucket hf://datasets/{REPO}",
        ),
        ([entry("a.tar", oid="")], "a.tar"),
        ([entry("a.tar", oid="x\r\ny")], "a.tar"),
        ([entry("a.tar", "5")], ".size"),
        ([entry("a.tar", True)], ".size"),
        ([{"error": "none"}], "type"),
        ([["a.tar"]], "array"),
    ],
)
def test_a_listing_that_cannot_be_is_refused(
    hub: Hub, commit: str, listing: object, named: str
) -> None:
    hub.misbehave(listing=listing)
    with pytest.raises(StorageError) as caught:
        list(bucket_of(hub).list())
    assert named in str(caught.value)


@pytest.mark.parametrize("fault", ["endless", "same_page"])
def test_a_listing_without_an_end_is_refused(
    hub: Hub, commit: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsort.storage.hub.PAGES_MAX", 20)
    hub.misbehave(**{fault: True})
    with raises(StorageError, f"bucket hf://datasets/{REPO}"):
        list(bucket_of(hub).list())
    assert len(hub.requests("tree")) <= 20


def test_a_page_of_any_size_is_not_read(
    hub: Hub, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsort.storage.hub.PAGE_BYTES_MAX", 100)
    with raises(StorageError, "100 bytes", f"bucket hf://datasets/{REPO}"):
        list(bucket_of(hub).list())


def test_the_next_page_is_on_the_same_server(hub: Hub, commit: str) -> None:
    hub.misbehave(next_page=hub.data_url)
    with raises(StorageError, f"bucket hf://datasets/{REPO}"):
        list(bucket_of(hub).list())
    assert hub.requests("data") == []


def no_commit(hub: Hub) -> None:
    bucket_of(hub).exists()


def whole(hub: Hub) -> None:
    bucket_of(hub).read("train/a-8.tar")


def part(hub: Hub) -> None:
    info = ObjectInfo("train/a-8.tar", len(FILES["train/a-8.tar"]), 0, listed_etag(hub))
    bucket_of(hub).pinned(info).read_into(memoryview(bytearray(90)), 100)


def listed_etag(hub: Hub) -> str:
    return next(each.etag for each in bucket_of(hub).list() if each.name == "train/a-8.tar")


OTHER = "0" * 40
WHERE = f"train/a-8.tar in bucket hf://datasets/{REPO}"


@pytest.mark.parametrize(
    ("read", "faults", "kind", "named"),
    [
        (no_commit, {"revision": "main"}, StorageError, "main"),
        (whole, {"loop": True}, StorageError, "5 times"),
        (whole, {"moved_to": "http://203.0.113.7/a.tar"}, StorageError, "http://203.0.113.7"),
        (whole, {"moved_to": "ftp://127.0.0.1/a.tar"}, StorageError, WHERE),
        (whole, {"moved_to": "https://user:pw@127.0.0.1/a.tar"}, StorageError, WHERE),
        (whole, {"moved_to": "file:///etc/passwd"}, StorageError, WHERE),
        (whole, {"moved_to": "https://[/a"}, StorageError, WHERE),
        (whole, {"on_to": "http://203.0.113.7/a.tar"}, StorageError, "http://203.0.113.7"),
        (whole, {"commit": OTHER}, ChangedInputError, OTHER),
        (whole, {"linked_size": 3}, StorageError, "3 bytes"),
        (whole, {"linked_size": -3}, StorageError, WHERE),
        (whole, {"linked_size": 10**30}, StorageError, WHERE),
        (part, {"no_ranges": True}, StorageError, WHERE),
        (part, {"longer_by": 5}, StorageError, "95 bytes"),
        (part, {"shorter_by": 5}, StorageError, "85 bytes"),
        (part, {"total_off": 1}, StorageError, "bytes 100 to 190 of 2,490"),
        (part, {"linked_size": 2000}, ChangedInputError, WHERE),
        (part, {"commit": OTHER}, ChangedInputError, OTHER),
    ],
)  # fmt: skip
def test_a_reply_that_cannot_be_is_refused_with_the_name(
    hub: Hub,
    commit: str,
    read: Callable[[Hub], None],
    faults: dict[str, object],
    kind: type[DsortError],
    named: str,
) -> None:
    assert listed_etag(hub)
    hub.misbehave(**faults)
    with raises(kind, named, f"bucket hf://datasets/{REPO}" if read is no_commit else WHERE):
        read(hub)


# --- nothing is written ---------------------------------------------------------------------------


@pytest.fixture
def writes(hub: Hub, commit: str) -> list[Callable[[], object]]:
    bucket = bucket_of(hub)
    token = ".dsort/job1/staged/0"
    return [
        bucket.create,
        lambda: bucket.write("a", b""),
        lambda: bucket.write_new("a", b""),
        lambda: bucket.write_over("a", b"", "etag"),
        lambda: bucket.delete("a"),
        lambda: bucket.stage(token, name="a"),
        lambda: bucket.publish(token, "a", overwrite=True, receipt="r"),
        lambda: bucket.keep_aside("a", token),
        lambda: bucket.put_back(token, "a", receipt="r"),
        lambda: bucket.discard(".dsort/job1/"),
    ]


def test_nothing_is_written(hub: Hub, writes: list[Callable[[], object]]) -> None:
    for write in writes:
        with raises(StorageError, f"hf://datasets/{REPO}", hint="https://s3.hf.co/NAMESPACE"):
            write()
    assert hub.requests() == []
    bucket = bucket_of(hub)
    assert bucket.still_staged({"t": ("a", "r")}) == bucket.published({"t": ("a", "r")}) == set()
