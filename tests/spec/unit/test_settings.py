"""Settings: the nearest place wins field by field, what is wrong is all said at once with where it
is, and no secret is taken or repeated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import asdict

from dsort.errors import SpecError
from dsort.settings import Settings, StoreSettings, load_settings, resolve_ref
from dsort.spec.buckets import parse_bucket
from dsort.storage.limit import StoreLimits
from dsort.storage.ref import BucketRef
from tests.support.refusals import raises

MIB = 1 << 20


class User:
    """A user with a home, a current directory and an environment, none of which is ours."""

    def __init__(self, directory: Path) -> None:
        self.cwd = directory / "work"
        self.home = directory / "home"
        self.environment: dict[str, str] = {}
        for each in (self.cwd, self.home / ".config" / "dsort", directory / "xdg" / "dsort"):
            each.mkdir(parents=True)

    def writes(self, text: str, *, at_home: bool = False) -> Path:
        path = (self.home / ".config" / "dsort" if at_home else self.cwd) / "dsort.toml"
        path.write_text(text)
        return path

    def settings(self, **variables: str) -> Settings:
        return load_settings({**self.environment, **variables}, self.cwd, self.home)

    def problems(self, **variables: str) -> dict[str, tuple[str, str]]:
        with pytest.raises(SpecError) as caught:
            self.settings(**variables)
        return {each.path: (each.message, each.hint) for each in caught.value.problems}


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


def test_without_files_and_variables_nothing_is_set(user: User) -> None:
    assert user.settings() == Settings()
    assert not user.settings().ais_is_there


def test_everything_that_can_be_set(user: User) -> None:
    user.writes(
        """
        root = "data"
        scratch = "~/scratch"
        memory_max = "8GB"
        bandwidth_max = "500MB"
        workers = 4
        ray_address = "auto"
        exchange = "ray"
        exchange_ports = "20000-20100"
        exchange_network = "10.1.0.0/16"

        [stores.s3]
        endpoint_url = "http://10.0.0.1:8333/"
        region = "eu-west-1"
        profile = "lab"
        requests_in_flight_max = 32
        part_bytes = "32MB"
        bandwidth_max = "100MB"

        [stores.gs]
        endpoint_url = "http://[::1]:4443"

        [stores.az]
        endpoint_url = "https://account.blob.core.windows.net"

        [stores.ais]
        endpoint_url = "http://ais:51080"

        [stores.http]
        requests_in_flight_max = 2
        """
    )
    found = user.settings()
    assert (found.root, found.scratch) == (user.cwd / "data", user.home / "scratch")
    assert (found.memory_max_bytes, found.workers, found.ray_address) == (8 << 30, 4, "auto")
    assert (found.exchange, found.exchange_ports) == ("ray", (20000, 20100))
    assert found.exchange_network == "10.1.0.0/16"
    assert found.bandwidth_max_bytes_per_s == 500 * MIB
    assert found.of_store("s3") == StoreSettings(
        "http://10.0.0.1:8333", "eu-west-1", "lab", 32, 32 * MIB, 100.0 * MIB
    )
    assert found.of_store("gs").endpoint_url == "http://[::1]:4443"
    assert found.of_store("az").endpoint_url == "https://account.blob.core.windows.net"
    assert found.of_store("http").requests_in_flight_max == 2
    assert found.ais_is_there


def test_the_nearest_place_wins_field_by_field(user: User) -> None:
    user.writes(
        'root = "/far"\nworkers = 1\n[stores.s3]\nregion = "far"\nprofile = "far"\n'
        'endpoint_url = "http://far"',
        at_home=True,
    )
    user.writes('root = "/near"\n[stores.s3]\nregion = "near"\nprofile = "near"')
    found = user.settings(DSORT_S3_REGION="here", DSORT_SCRATCH="here", AWS_ENDPOINT_URL="http://x")
    assert (found.root, found.workers, found.scratch) == (Path("/near"), 1, Path("here"))
    assert found.of_store("s3") == StoreSettings("http://far", "here", "near")


def test_the_directory_of_configuration_may_be_elsewhere(user: User, tmp_path: Path) -> None:
    user.writes("workers = 1", at_home=True)
    (tmp_path / "xdg" / "dsort" / "dsort.toml").write_text("workers = 2")
    assert user.settings(XDG_CONFIG_HOME=str(tmp_path / "xdg")).workers == 2
    assert user.settings(XDG_CONFIG_HOME="relative, so of no account").workers == 1
    assert user.settings(XDG_CONFIG_HOME="").workers == 1


def test_every_variable_of_ours(user: User) -> None:
    found = user.settings(
        DSORT_ROOT="data",
        DSORT_MEMORY_MAX="8GB",
        DSORT_BANDWIDTH_MAX="1MB",
        DSORT_WORKERS="3",
        DSORT_RAY_ADDRESS="auto",
        DSORT_S3_ENDPOINT_URL="http://s3",
        DSORT_S3_PROFILE="lab",
        DSORT_S3_PART_BYTES="8MB",
        DSORT_GS_ENDPOINT_URL="http://gs",
        DSORT_AZ_ENDPOINT_URL="http://az",
        DSORT_AIS_ENDPOINT_URL="http://ais",
        DSORT_AIS_REGION="here",
        DSORT_HTTP_REQUESTS_IN_FLIGHT_MAX="5",
        DSORT_S3_REGION="",
        DSORT_TEST_SEED="another user's",
    )
    assert (found.root, found.memory_max_bytes, found.workers) == (Path("data"), 8 << 30, 3)
    assert (found.bandwidth_max_bytes_per_s, found.ray_address) == (MIB, "auto")
    assert found.of_store("s3") == StoreSettings("http://s3", profile="lab", part_bytes=8 * MIB)
    assert found.of_store("gs").endpoint_url == "http://gs"
    assert found.of_store("az").endpoint_url == "http://az"
    assert found.of_store("ais") == StoreSettings("http://ais", "here")
    assert found.of_store("http").requests_in_flight_max == 5


@pytest.mark.parametrize(
    ("variables", "endpoint_url"),
    [
        ({"AWS_ENDPOINT_URL": "http://a"}, "http://a"),
        ({"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b"}, "http://b"),
        ({"AWS_ENDPOINT_URL_S3": "http://b", "DSORT_S3_ENDPOINT_URL": "http://c"}, "http://c"),
        ({"AWS_ENDPOINT_URL_S3": ""}, ""),
    ],
)
def test_the_usual_variables_of_aws_count_below_ours(
    user: User, variables: dict[str, str], endpoint_url: str
) -> None:
    assert user.settings(**variables).of_store("s3").endpoint_url == endpoint_url


def test_a_bucket_may_have_settings_of_its_own_and_the_longest_uri_wins(user: User) -> None:
    user.writes(
        """
        [stores.s3]
        endpoint_url = "http://all"
        region = "all"
        [stores."s3://images"]
        endpoint_url = "http://images"
        profile = "images"
        [stores."S3://images/train/"]
        profile = "train"
        part_bytes = "64MB"
        """
    )
    found = user.settings(DSORT_S3_ENDPOINT_URL="http://variable")
    for uri, expected in {
        "s3://other": StoreSettings("http://variable", "all"),
        "s3://images2": StoreSettings("http://variable", "all"),
        "s3://images": StoreSettings("http://images", "all", "images"),
        "s3://images/trainer": StoreSettings("http://images", "all", "images"),
        "s3://images/train": StoreSettings("http://images", "all", "train", None, 64 * MIB),
        "s3://images/train/x": StoreSettings("http://images", "all", "train", None, 64 * MIB),
        "gs://images": StoreSettings(),
    }.items():
        assert found.of_bucket(parse_bucket(uri)) == expected, uri


def test_a_reference_is_filled_where_it_says_nothing(user: User) -> None:
    found = user.settings(
        DSORT_S3_ENDPOINT_URL="http://s3", DSORT_S3_REGION="here", DSORT_S3_PROFILE="lab",
        DSORT_GS_ENDPOINT_URL="http://gs", DSORT_AZ_ENDPOINT_URL="http://az",
    )  # fmt: skip
    for ref, resolved in (
        (BucketRef("s3", "b"), BucketRef("s3", "b", "http://s3", "here", "lab")),
        (BucketRef("s3", "b", "http://x"), BucketRef("s3", "b", "http://x", "here", "lab")),
        (BucketRef("s3", "b", "", "there"), BucketRef("s3", "b", "http://s3", "there", "lab")),
        (BucketRef("gs", "b/c"), BucketRef("gs", "b/c", "http://gs")),
        (BucketRef("az", "b"), BucketRef("az", "b", "http://az")),
        (BucketRef("", "images"), BucketRef("", "images")),
        (BucketRef("file", "/images"), BucketRef("file", "/images")),
        (BucketRef("https", "host/x"), BucketRef("https", "host/x")),
    ):
        assert resolve_ref(ref, found) == resolved
        assert resolve_ref(resolved, found) == resolved
    assert resolve_ref(BucketRef("s3", "b"), Settings()) == BucketRef("s3", "b")


@pytest.mark.parametrize(
    "endpoint", ["http://ais:51080", "http://ais:51080/", "http://ais:51080/s3"]
)
@pytest.mark.parametrize("variable", ["AIS_ENDPOINT", "DSORT_AIS_ENDPOINT_URL"])
def test_aistore_is_s3_under_its_endpoint(user: User, variable: str, endpoint: str) -> None:
    found = user.settings(**{variable: endpoint})
    assert found.ais_is_there
    ref = resolve_ref(BucketRef("ais", "images"), found)
    assert ref == BucketRef("ais", "images", "http://ais:51080/s3")
    assert resolve_ref(ref, found) == ref


def test_aistore_without_an_endpoint_is_a_mistake_with_a_hint() -> None:
    with raises(SpecError, "ais://images", hint="AIS_ENDPOINT="):
        resolve_ref(BucketRef("ais", "images"), Settings())
    ref = resolve_ref(BucketRef("ais", "images", "http://host"), Settings())
    assert ref.endpoint_url == "http://host/s3"


def test_limits_are_those_of_the_bucket_and_else_the_usual_ones(user: User) -> None:
    user.writes(
        '[stores.s3]\nrequests_in_flight_max = 3\n[stores."s3://images"]\npart_bytes = "8MB"\n'
        'bandwidth_max = "1MB"\n[stores.http]\nrequests_in_flight_max = 7'
    )
    found = user.settings()
    limits = found.limits(parse_bucket("s3://images/x"))
    assert (limits.requests_in_flight_max, limits.part_bytes) == (3, 8 * MIB)
    assert limits.bandwidth_max_bytes_per_s == MIB
    assert limits.tries_max == StoreLimits().tries_max
    assert found.limits(parse_bucket("https://host/x")).requests_in_flight_max == 7
    assert found.limits(parse_bucket("gs://images")) == StoreLimits()


def test_all_that_is_wrong_is_said_at_once_with_where_it_is(user: User) -> None:
    far = user.writes("worker = 1", at_home=True)
    near = user.writes(
        """
        root = 5
        workers = 0
        memory_max = "much"
        store = {}
        [stores.s3]
        endpoint = "http://x"
        endpoint_url = "10.0.0.1:8333"
        part_bytes = "1MB"
        requests_in_flight_max = true
        [stores.gs]
        region = "eu"
        [stores.s4]
        [stores."s3://Images"]
        [stores."file:///x"]
        """
    )
    problems = user.problems(DSORT_WORKERS="two", DSORT_S3_PROFIL="x", AIS_ENDPOINT="ais:80")
    expected = {
        f"{far}: worker": ("unknown setting", 'did you mean "workers"?'),
        f"{near}: root": ("must be a text", ""),
        f"{near}: workers": ("must be a whole number of at least 1", ""),
        f"{near}: memory_max": ("'much' is not a size", ""),
        f"{near}: store": ("unknown setting", 'did you mean "stores"?'),
        f"{near}: stores.s3.endpoint": ("unknown setting", 'did you mean "endpoint_url"?'),
        f"{near}: stores.s3.endpoint_url": ('"10.0.0.1:8333"', 'write "http://10.0.0.1:8333" or'),
        f"{near}: stores.s3.part_bytes": ("must be 5 MiB to 5 GiB", ""),
        f"{near}: stores.s3.requests_in_flight_max": ("must be a whole number", ""),
        f"{near}: stores.gs.region": ("unknown setting", "known: endpoint_url"),
        f"{near}: stores.s4": ("unknown store", "known: s3, ais, gs, az, hf, http"),
        'DSORT_WORKERS': ("must be a whole number of at least 1", ""),
        'DSORT_S3_PROFIL': ("unknown setting", 'did you mean "DSORT_S3_PROFILE"?'),
        "AIS_ENDPOINT": ('"ais:80"', 'write "http://ais:80" or'),
    }  # fmt: skip
    for path, (message, hint) in expected.items():
        assert problems[path][0].startswith(message), path
        assert problems[path][1].startswith(hint), path
    assert problems.keys() - expected.keys() == {f"{near}: stores"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root = ", "no TOML"),
        ('[stores.s3://b]\nregion = "x"', "no TOML"),
        ("a = " + "[" * 100_000, "its lists and tables are nested too deep"),
        ("stores = 1", "must be a table"),
        ("[stores]\ns3 = 1", "must be a table"),
    ],
)
def test_what_is_no_settings_file_is_named(user: User, text: str, message: str) -> None:
    path = user.writes(text)
    ((where, (said, _)),) = user.problems().items()
    assert where.startswith(str(path))
    assert said.startswith(message)


def test_a_file_that_cannot_be_read_is_named(user: User) -> None:
    path = user.cwd / "dsort.toml"
    path.mkdir()
    assert user.problems() == {str(path): ("cannot read it: Is a directory", "")}
    path.rmdir()
    path.write_bytes(b'root = "\xff"')
    assert user.problems()[str(path)][0].startswith("not UTF-8 at byte 8")
    path.write_bytes(b"#" * (MIB + 1))
    assert user.problems()[str(path)][0].startswith("too big")


@pytest.mark.parametrize(
    "sets",
    [
        lambda user: user.writes('[stores.s3]\nsecret_access_key = "hunter2"'),
        lambda user: user.writes('[stores."s3://images"]\naccess_key = "hunter2"'),
        lambda user: user.writes('password = "hunter2"', at_home=True),
        lambda user: user.writes('[stores.s3]\nendpoint_url = "http://me:hunter2@host"'),
        lambda user: user.writes('[stores."s3://me:hunter2@images"]\nregion = "x"'),
        lambda user: user.environment.update(DSORT_S3_SECRET_KEY="hunter2"),
        lambda user: user.environment.update(DSORT_AZ_SAS_TOKEN="hunter2"),
        lambda user: user.environment.update(AIS_ENDPOINT="http://me:hunter2@host"),
        lambda user: user.environment.update(AWS_ENDPOINT_URL="http://me:hunter2@host"),
    ],
)
def test_secrets_are_refused_and_not_repeated(user: User, sets: Callable[[User], object]) -> None:
    sets(user)
    ((path, (message, hint)),) = user.problems().items()
    assert "hunter2" not in path + message + hint
    assert hint.startswith("credentials never go into a spec or a settings file")


def test_commands_are_the_users_own_and_lists_of_texts(tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "job"
    own = home / ".config" / "dsort"
    own.mkdir(parents=True)
    cwd.mkdir()
    (own / "dsort.toml").write_text('[commands]\npage = ["/usr/bin/page", "--team", "data"]\n')
    found = load_settings({}, cwd, home)
    assert dict(found.commands) == {"page": ("/usr/bin/page", "--team", "data")}
    (cwd / "dsort.toml").write_text('[commands]\npage = ["/tmp/evil"]\n')
    with raises(SpecError, "job/dsort.toml: commands"):
        load_settings({}, cwd, home)
    (cwd / "dsort.toml").unlink()
    for wrong in ('"/bin/x"', "[]", '["x"]', '["/bin/x", 1]'):
        (own / "dsort.toml").write_text(f"[commands]\npage = {wrong}\n")
        with raises(SpecError, "dsort.toml: commands.page"):
            load_settings({}, cwd, home)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DSORT_EXCHANGE", "tcp"),
        ("DSORT_EXCHANGE_PORTS", "20000"),
        ("DSORT_EXCHANGE_PORTS", "20100-20000"),
        ("DSORT_EXCHANGE_PORTS", "0-65536"),
        ("DSORT_EXCHANGE_PORTS", "1-2-3"),
        ("DSORT_EXCHANGE_NETWORK", "10.1.0.1/16"),
    ],
)
def test_what_says_nothing_about_the_exchange_is_refused(
    user: User, variable: str, value: str
) -> None:
    assert list(user.problems(**{variable: value})) == [variable]


def test_ports_of_the_exchange_come_back_from_json(user: User) -> None:
    found = user.settings(DSORT_EXCHANGE_PORTS="20000-20100")
    assert Settings.of_json(json.loads(json.dumps(asdict(found), default=str))) == found
