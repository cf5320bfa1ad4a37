"""A spec from the network leads nowhere but where the operator allows: buckets, links, servers,
key maps and names, each refused by what it really is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dsort.api import run
from dsort.errors import ForbiddenError, KeyMapError, SpecError, StorageAccessError, StorageError
from dsort.loose_files.listing import Places
from dsort.options import RunOptions
from dsort.service.config import SpecPolicy
from dsort.service.security.guard import SpecPlaces, check_spec, place_of, policy_of_bucket
from dsort.settings import Settings, StoreSettings
from dsort.spec.load import parse_spec
from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.open import open_bucket, open_pair
from dsort.storage.ref import BucketRef
from dsort.storage.routed import BucketPlace
from tests.support.refusals import raises
from tests.support.tars import tar_of

PLAIN = {"input_bck": "in", "output_bck": "out", "output_format": "x-%d", "output_shard_size": 1}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with links in it, and a private directory beside it."""
    root = tmp_path / "root"
    for each in (root / "in" / "sub", root / "out", root / "state", tmp_path / "secret"):
        each.mkdir(parents=True)
    (root / "away").symlink_to(tmp_path / "secret")
    (root / "in" / "away").symlink_to(tmp_path / "secret")
    (root / "in" / "near").symlink_to(root / "out")
    (tmp_path / "secret" / "a.tar").write_bytes(b"s" * 1024)
    (tmp_path / "secret" / "map.txt").write_text("a\tx-%d\n")
    (root / "in" / "a.tar").write_bytes(b"a" * 1024)
    (root / "in" / "linked.tar").symlink_to(tmp_path / "secret" / "a.tar")
    (root / "map.txt").write_text("a\tx-%d\n")
    return root


def check(root: Path, fields: Mapping[str, Any], **policy: Any) -> SpecPlaces:
    spec = parse_spec({**PLAIN, **fields}).spec
    return check_spec(spec, SpecPolicy(root=root, denied=(root / "state",), **policy))


def test_buckets_under_the_root_have_one_canonical_address(root: Path) -> None:
    places = check(root, {"input_bck": "in/near", "output_bck": f"file://{root}/out/new/deep"})
    output = f"file://{root}/out/new/deep"
    assert places == SpecPlaces(f"file://{root}/out", output, (), {"": output})
    assert place_of(parse_spec({**PLAIN}).spec.input_bck, root) == f"file://{root}/in"
    assert check(root, {"input_bck": "."}).input_uri == f"file://{root}"


def test_each_of_several_inputs_is_judged(root: Path) -> None:
    inputs = [{"name": "a", "input_bck": "in"}, {"name": "b", "input_bck": "out"}]
    several = {name: value for name, value in PLAIN.items() if name != "input_bck"}

    def checked(*inputs: Mapping[str, Any]) -> SpecPlaces:
        spec = parse_spec({**several, "inputs": inputs}).spec
        return check_spec(spec, SpecPolicy(root=root, denied=(root / "state",)))

    assert checked(*inputs).input_uri == f"file://{root}/in\nfile://{root}/out"
    with raises(ForbiddenError, "inputs[1].input_bck", "away"):
        checked(inputs[0], {"name": "b", "input_bck": "away"})
    with raises(ForbiddenError, "inputs[1].input_format", "away"):
        checked(inputs[1], {**inputs[0], "input_format": {"prefix": "away/"}})
    with raises(SpecError, ".dsort/x.tar", paths=["inputs[0].input_format.objnames[0]"]):
        checked({**inputs[0], "input_format": {"objnames": [".dsort/x.tar"]}})


@pytest.mark.parametrize("field", ["input_bck", "output_bck"])
@pytest.mark.parametrize(
    "bucket",
    [
        "away",
        "away/new",
        "in/away",
        "state",
        "state/deeper",
        "file:///etc",
        "file://ROOT-beside",
        "s3://bucket",
        "gs://bucket/in",
        {"name": "bucket", "provider": "azure"},
        {"name": "b", "provider": "aws", "endpoint_url": "http://169.254.169.254"},
    ],
)
def test_a_bucket_elsewhere_is_forbidden(root: Path, field: str, bucket: Any) -> None:
    if isinstance(bucket, str):
        bucket = bucket.replace("ROOT", str(root))
    with pytest.raises(ForbiddenError, match=field) as caught:
        check(root, {field: bucket})
    assert "secret" not in str(caught.value)


def test_a_spec_names_no_result_of_another_job(root: Path) -> None:
    with pytest.raises(ForbiddenError) as caught:
        check(root, {"output_format": None, "output_shard_size": None, "like": "in"})
    assert str(caught.value).startswith("like")


BUCKETS = (
    *("../in", "/etc", "in/../../secret", "file:///data/../etc", "file:///data/%2e%2e/etc"),
    *(".dsort", "in/.dsort/20260101", "s3://bucket/.dsort/x", "in\0x", "in\x1bx"),
)
OUTPUTS = (
    *("../x-%d", "/etc/x-%d", "a/../x-%d", "x-%d/..", "{0..1}/../../{0..1}", "./x-%d", "a//x-%d"),
    *("x-%d/", ".dsort/x-%d", "sub/.dsort/x-%d", "x-%d/.dsort/y", "a\0x-%d", "a\nx-%d"),
    *("a\x1b[2Jx-%d", "a\x9bx-%d", "a\udce9x-%d", "x" * 300 + "-%d", "a?x-%d"),
)
NAMES = (
    "../a.tar",
    "/etc/a.tar",
    "a/./b.tar",
    ".dsort/job/x.tar",
    "sub/.dsort/job/x.tar",
    "a\0.tar",
)
TEMPLATES = (
    *("../a-{0..1}", "{a,../../b}/x-{0..1}", "{a,.}{b,.}/x.tar", "{.ds,x}{ort,y}/x.tar"),
    "a-{0..1}::{a,b/..}/x.tar",
)
ESCAPING: list[dict[str, Any]] = [
    *({"input_bck": each} for each in BUCKETS),
    *({"output_bck": each} for each in BUCKETS[-3:]),
    *({"output_format": each} for each in OUTPUTS),
    {"output_format": None, "ekm": {"ok-%d": ["a"], "../x-%d": ["b"]}},
    {"output_format": None, "ekm": {"a/.dsort/x-%d": ["b"]}},
    {
        "output_format": None,
        "ekm": {"ok-%d": ["a"]},
        "ekm_default": "../x-%d",
        "Config": {"ekm_missing_key": "warn"},
    },
    *({"input_format": {"objnames": ["ok.tar", each]}} for each in NAMES),
    *({"input_format": {"template": each}} for each in TEMPLATES),
    *({"input_format": {"prefix": each}} for each in ("../", ".dsort/", "sub/.dsort/")),
    *({"input_format": {"glob": each}} for each in ("../**", "sub/.dsort/**")),
]


@pytest.mark.parametrize("fields", ESCAPING, ids=repr)
def test_no_name_leads_out_of_its_bucket(root: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        check(root, fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"input_format": {"objnames": ["sub/a.tar", "away/a.tar"]}},
        {"input_format": {"template": "{sub,away}/a-{0..9}"}},
        {"input_format": {"prefix": "away/"}},
        {"input_format": {"glob": "away/**"}},
        {"output_bck": "in", "output_format": "away/x-%d"},
        {"output_bck": "in", "output_format": "away/new/x-%d"},
        {"output_bck": ".", "output_format": "state/x-%d"},
        {"output_bck": "in", "output_format": None, "ekm": {"away/x-%d": ["a"]}},
    ],
    ids=repr,
)
def test_a_directory_behind_a_link_is_forbidden(root: Path, fields: dict[str, Any]) -> None:
    with raises(ForbiddenError):
        check(root, fields)


def test_a_link_into_another_bucket_is_fine_where_that_is_an_input_too(root: Path) -> None:
    more: dict[str, Any] = {"allow": (f"file://{root.parent}/secret",)}
    several = {name: value for name, value in PLAIN.items() if name != "input_bck"}
    for link, bucket in (("near", "out"), ("away", f"file://{root.parent}/secret")):
        one = {"name": "a", "input_bck": "in", "input_format": {"prefix": f"{link}/"}}
        with raises(ForbiddenError, "input_format", f'"{link}"'):
            check(root, {"input_format": one["input_format"]}, **more)
        both = {**several, "inputs": [one, {"name": "b", "input_bck": bucket}]}
        policy = SpecPolicy(root=root, denied=(root / "state",), **more)
        assert check_spec(parse_spec(both).spec, policy).file_uris == ()


def test_the_job_refuses_what_only_a_listing_finds(root: Path) -> None:
    """Also what has become a link since the spec was checked."""
    policy = SpecPolicy(root=root, denied=(root / "state",)).fetch_policy()
    bucket = open_bucket("in", root=root, policy=policy)
    assert bucket.read("a.tar") == b"a" * 1024
    for name in ("linked.tar", "away/a.tar"):
        for look in (bucket.stat, bucket.read, bucket.delete, bucket.local_path):
            with raises(StorageAccessError, name):
                look(name)
    with pytest.raises(StorageAccessError):
        list(bucket.list())
    with pytest.raises(StorageAccessError):
        bucket.write("away/x", b"")
    (root / "in" / "linked.tar").unlink()
    (root / "in" / "away").unlink()
    assert [info.name for info in bucket.list()] == ["a.tar"]
    with pytest.raises(StorageAccessError):
        open_bucket("away/new", root=root, policy=policy).create()
    assert not (root.parent / "secret" / "new").exists()
    bucket.stage(".dsort/job/x").close()
    bucket.publish(".dsort/job/x", "new/x.tar", overwrite=False)
    with pytest.raises(StorageAccessError):
        open_bucket("state", root=root, policy=policy).stat("service.db")


HTTPS = "https://data.example.com"
ALLOWED = {
    "s3://team-*": ("s3://team-a", "s3://team-a/train"),
    "s3://*/public": ("s3://any/public/train",),
    "s3://buck/train": ("s3://buck/train", "s3://buck/train/2024"),
    "s3://buck/tr*": ("s3://buck/train2",),
    "hf://datasets/lab/*": ("hf://datasets/lab/flowers", "hf://datasets/lab/flowers@v1/data"),
    HTTPS: (f"{HTTPS}/x",),
    "https://Data.example.com/train/*": (f"{HTTPS}/train/x",),
    "http://127.0.0.1:8000": ("http://127.0.0.1:8000/x",),
    "file:///mnt/data": ("file:///mnt/data/x",),
    "file:///mnt/data/*": ("file:///mnt/data/x",),
    "file:///mnt/*/public": ("file:///mnt/a/public/x",),
    "file:///mnt/data*": ("file:///mnt/database",),
}
FORBIDDEN = {
    "s3://team-*": ("s3://other/team-a", "gs://team-a"),
    "s3://*/public": ("s3://any/private/public",),
    "s3://buck/train": ("s3://buck/train2", "s3://buck"),
    "hf://datasets/lab/flowers": ("hf://datasets/lab/flowers2", "hf://datasets/other/flowers"),
    f"{HTTPS}/train": (f"{HTTPS}/other",),
    HTTPS: ("http://data.example.com/x", f"{HTTPS}.evil.org/x", f"{HTTPS}:8443/x"),
    "http://127.0.0.1:8000": ("http://127.0.0.1:8001/x",),
    "file:///mnt/data": ("file:///mnt/database",),
    "file:///mnt/*/public": ("file:///mnt/a/x",),
}


def test_patterns_of_allowed_buckets(root: Path) -> None:
    def fields(bucket: str) -> dict[str, Any]:
        return {"input_bck": bucket, "input_format": {"objnames": ["a.tar"]}}

    for allow, buckets in ALLOWED.items():
        for bucket in buckets:
            assert check(root, fields(bucket), allow=(allow,)).input_uri == bucket, allow
    for allow, buckets in FORBIDDEN.items():
        for bucket in buckets:
            with pytest.raises(ForbiddenError):
                check(root, fields(bucket), allow=(allow,))


@pytest.mark.parametrize("allow", ["s3", "ftp://x", "file://rel", "data", "*", "https://*.x.org"])
def test_an_invalid_pattern_is_reported_at_the_start(root: Path, allow: str) -> None:
    with raises(SpecError, paths=["allow"]):
        SpecPolicy(root=root, allow=(allow,))


def test_the_data_root_is_not_where_the_state_is(root: Path) -> None:
    with raises(SpecError, paths=["root"]):
        SpecPolicy(root=root, denied=(root.parent / "root" / "in" / "..",))
    inside = SpecPolicy(root=root, denied=(root.parent,)).fetch_policy()
    assert inside.allows_path(f"{root}/in")


def test_a_listing_leaves_out_what_is_the_services_own(root: Path) -> None:
    (root / "state" / "service.db").write_bytes(b"")
    for link in ("away", "in/away", "in/linked.tar"):
        (root / link).unlink()
    policy = SpecPolicy(root=root, denied=(root / "state",)).fetch_policy()
    names = [info.name for info in open_bucket(".", root=root, policy=policy).list()]
    assert names == ["in/a.tar", "map.txt"]


def test_the_way_to_a_store_is_the_operators(root: Path) -> None:
    settings = Settings(
        stores=(("s3", StoreSettings(endpoint_url="http://store:8333", profile="service")),)
    )
    bucket = {"name": "team", "provider": "aws"}
    policy: dict[str, Any] = {"allow": ("s3://team",), "settings": settings}
    check(root, {"input_bck": bucket}, **policy)
    same = {**bucket, "endpoint_url": "http://store:8333", "profile": "service"}
    assert check(root, {"input_bck": same}, **policy).input_uri == "s3://team"
    for way in (
        {"endpoint_url": "http://10.0.0.1"},
        {"profile": "admin"},
        {"region": "x.evil.org/#"},
    ):
        with raises(ForbiddenError, '"s3://team"'):
            check(root, {"input_bck": {**bucket, **way}}, **policy)


OWN_MAPS = (
    *("map.txt", "in/../map.txt", "ROOT/map.txt", "file://ROOT/map.txt"),
    "file://localhostROOT/map.txt",
)
WEB_MAPS = (
    *("https://maps.example.com/a.json", "https://maps.example.com:443/a.json?token=x"),
    "https://MAPS.example.com./a.json",
)
NO_MAPS = (
    *("file://other/map.txt", "https://user:pw@maps.example.com/a", "https://"),
    *("https://maps.example.com@evil.org/a", "https://maps.example.com\\@evil.org/a"),
    "https://maps.example.com:x/a",
)
OTHER_MAPS = (
    *("file:///etc/passwd", "/etc/passwd", "../secret/map.txt", "away/map.txt"),
    *("file://ROOT/away/map.txt", "file://ROOT/%2e%2e/secret/map.txt", "state/service.db"),
    *(".dsort/job/resolved.json", "https://maps.example.com:8443/a.json"),
    *("https://other.org/maps.example.com", "http://169.254.169.254/latest"),
    *("http://127.0.0.1/a", "http://[::1]/a"),
)


def test_key_maps_are_files_under_the_root_or_on_allowed_servers(root: Path) -> None:
    def files(location: str) -> tuple[str, ...]:
        fields = {"output_format": None, "ekm_file": location.replace("ROOT", str(root))}
        hosts = ("maps.example.com", "1*", "[::1]")
        return tuple(check(root, fields, ekm_allow_hosts=hosts).file_uris)

    for location in OWN_MAPS:
        assert files(location) == (f"file://{root}/map.txt",), location
    for location in WEB_MAPS:
        assert files(location) == (), location
    for kind, locations in ((SpecError, NO_MAPS), (ForbiddenError, OTHER_MAPS)):
        for location in locations:
            with raises(kind) as caught:
                files(location)
            assert "pw" not in str(caught.value)


@pytest.mark.parametrize("pattern", ["h:8443", "[::1]:8443", "*.example.com:*", "10.0.0.1:80", "h"])
def test_a_server_of_key_maps_may_be_named_with_its_port(root: Path, pattern: str) -> None:
    host, _, port = pattern.replace("*.", "maps.").rpartition(":")
    url = f"https://{host}:{port}/a" if host else f"https://{port}/a"
    fields = {"output_format": None, "ekm_file": url.replace("*", "9")}
    more: dict[str, Any] = {"ekm_allow_hosts": (pattern,), "ekm_allow_private": True}
    assert check(root, fields, **more).file_uris == ()
    with raises(ForbiddenError, hint="port"):
        check(root, {**fields, "ekm_file": "https://other:8444/a"}, **more)


@pytest.mark.parametrize(
    "pattern",
    ["https://h", "h/a", "u@h", "", ":80", "h:", "h:x", "h:70000", "[::1", "[::1]:x", "a b", "h\n"],
)
def test_an_invalid_server_of_key_maps_is_reported_at_the_start(root: Path, pattern: str) -> None:
    with raises(SpecError, paths=["ekm_allow_host"]):
        SpecPolicy(root=root, ekm_allow_hosts=(pattern,))


def test_templates_that_stand_for_too_much_are_refused(root: Path) -> None:
    wide = "{a,b}" * 20 + ".tar"
    long = "x" * 250 + "/" + "y" * 240 + "-{0..4999999}"
    for template in (wide, long):
        with pytest.raises(SpecError):
            check(root, {"input_format": {"template": template}})


def test_the_engine_is_held_to_the_policy(root: Path) -> None:
    """A job whose policy is set touches nothing that links lead to, however it comes upon it."""
    for name in ("in/linked.tar", "in/away"):
        (root / name).rename(root / "out" / Path(name).name)
    (root / "in" / "b.tar").write_bytes(tar_of({"a.txt": b"x"}))
    for name in ("a.tar", "near"):
        (root / "in" / name).unlink()
    policy = SpecPolicy(root=root, denied=(root / "state",)).fetch_policy()
    options = RunOptions(root=root, workers=1, move="map", fetch=policy)
    (root / "away.txt").write_text("a\taway/x-%d\n")
    wrong: list[dict[str, Any]] = [
        {"input_bck": "out"},  # a listing
        {"input_bck": "out", "input_format": {"objnames": ["linked.tar"]}},
        {"output_format": "away/x-%d"},
        {"output_format": None, "ekm_file": "away.txt"},
    ]
    for fields in wrong:
        with raises(StorageAccessError):
            run(parse_spec({**PLAIN, **fields}).spec, options=options)
    away = parse_spec({**PLAIN, "output_format": None, "ekm_file": "away/map.txt"}).spec
    with raises(KeyMapError, "away/map.txt"):
        run(away, options=options)
    assert sorted(path.name for path in (root.parent / "secret").iterdir()) == ["a.tar", "map.txt"]
    assert run(parse_spec(PLAIN).spec, options=options).records == 1


def job_bucket(root: Path) -> LocalBucket:
    """The bucket ``in`` as a job that reads and writes it opens it."""
    place = f"file://{root}/in"
    policy = policy_of_bucket(place, SpecPolicy(root=root, denied=(root / "state",)))
    bucket = open_bucket("in", root=root, policy=policy.for_outputs())
    assert isinstance(bucket, LocalBucket)
    return bucket


def test_a_directory_that_becomes_a_link_after_the_look_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, secret = job_bucket(root), root.parent / "secret"
    before = {path.name: path.read_bytes() for path in secret.iterdir()}
    bucket.stage(".dsort/job/x").close()
    bucket.write("kept.tar", b"kept")
    monkeypatch.setattr(LocalBucket, "_check", lambda self, path: None)  # a directory, by then
    root_of_files = Places([bucket])
    calls: list[Callable[[], object]] = [
        lambda: bucket.stat("away/a.tar"),
        lambda: bucket.stat_many(["away/a.tar"]),
        lambda: bucket.read("away/a.tar"),
        lambda: bucket.read("linked.tar"),
        lambda: root_of_files.read_into(memoryview(bytearray(4)), 0, b"away/a.tar", 0, 0),
        lambda: bucket.write("away/a.tar", b""),
        lambda: bucket.write("away/new/x", b""),
        lambda: bucket.write_new("away/new", b""),
        lambda: bucket.delete("away/a.tar"),
        lambda: bucket.publish(".dsort/job/x", "away/a.tar", overwrite=True),
        lambda: bucket.publish(".dsort/job/x", "away/b.tar", overwrite=False),
        lambda: bucket.keep_aside("away/a.tar", ".dsort/job/kept"),
        lambda: bucket.put_back(".dsort/job/x", "away/a.tar", receipt=""),
    ]
    for call in calls:
        with raises(StorageAccessError):
            call()
    assert {path.name: path.read_bytes() for path in secret.iterdir()} == before
    bucket.publish(".dsort/job/x", "linked.tar", overwrite=True)  # the link itself goes
    assert {path.name: path.read_bytes() for path in secret.iterdir()} == before


def test_a_job_stages_no_output_behind_a_link(root: Path) -> None:
    bucket, own = job_bucket(root), root / "in" / ".dsort" / "job"
    own.mkdir(parents=True)
    (own / "x").symlink_to(root / "in" / "a.tar")
    (own / "y").symlink_to(root.parent / "secret" / "a.tar")
    for token in (".dsort/job/x", ".dsort/job/y"):
        with pytest.raises(StorageError):
            bucket.stage(token)
    assert (root / "in" / "a.tar").read_bytes() == b"a" * 1024
    assert (root.parent / "secret" / "a.tar").read_bytes() == b"s" * 1024


def test_a_listing_tells_no_name_of_what_a_link_leads_to(root: Path) -> None:
    for prefix in ("away", "away/", "away/a", ""):
        for listing in (LocalBucket.list, LocalBucket.list_all):
            with raises(StorageAccessError, "in/away"):
                list(listing(job_bucket(root), prefix))
    (root / "in").rename(root / "was")
    (root / "in").symlink_to(root.parent / "secret")
    bucket = LocalBucket(root / "in", policy=FetchPolicy(roots=(str(root / "in"),)))
    with raises(StorageAccessError, str(root / "in")):
        list(bucket.list())


def test_workers_open_the_buckets_of_a_job_under_its_policy(root: Path) -> None:
    service = SpecPolicy(root=root, denied=(root / "state",)).fetch_policy()
    policy = service.of_job([f"{root}/in"], [f"{root}/out"], ())
    inputs, outputs = open_pair(
        [BucketPlace("", BucketRef("", "in"))],
        [BucketPlace("", BucketRef("", "out"))],
        root,
        policy,
    )
    (root / "out" / "back").symlink_to(root / "in")
    assert inputs.read("a.tar") == b"a" * 1024
    for bucket, name in ((inputs, "linked.tar"), (inputs, "near/x"), (outputs, "back/a.tar")):
        with pytest.raises(StorageAccessError):
            bucket.stat(name)
