"""The steps ``exec`` and ``http``: programs and servers make records, and may do it wrong."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from aistore.sdk.etl.webserver.http_multi_threaded_server import (
    HTTPMultiThreadedServer,
    ThreadedHTTPServer,
)

from dsort.errors import TransformError
from tests.support.datasets import payloads_in
from tests.support.engine import count_of, records_out, refused, run_local
from tests.support.etl_server import EtlServer, etl_server
from tests.transforms.jobs.test_map_steps import rejects_of, shards, with_steps

pytestmark = pytest.mark.usefixtures("workers_here")


def shell(script: str, **options: Any) -> dict[str, Any]:
    return {"exec": {"command": ["sh", "-c", script], **options}}


def python(script: str, **options: Any) -> dict[str, Any]:
    return {"exec": {"command": [sys.executable, "-S", "-c", script], **options}}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of temporary files that no other test has."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


@pytest.fixture
def server() -> Iterator[EtlServer]:
    with etl_server() as etl:
        yield etl


def test_a_program_makes_files_of_files(tmp_path: Path) -> None:
    shards(tmp_path, "a", "d/b")
    step = {"exec": {"command": ["cp", "$IN/jpg", "$OUT/seg.png"], "drop": ["jpg"]}}
    run_local(tmp_path, with_steps(step))
    assert dict(payloads_in(tmp_path / "out")) == {
        "a.cls": b"a.cls",
        "a.seg.png": b"a.jpg",
        "d/b.cls": b"d/b.cls",
        "d/b.seg.png": b"d/b.jpg",
    }


SECRETS = {
    "DSORT_DATABASE_URL": "postgresql://u@host/very-secret",
    "DSORT_TOKEN": "very-secret",
    "AWS_SECRET_ACCESS_KEY": "very-secret",
    "AWS_SESSION_TOKEN": "very-secret",
    "GOOGLE_APPLICATION_CREDENTIALS": "/very-secret.json",
    "AZURE_STORAGE_CONNECTION_STRING": "very-secret",
    "DATABASE_URL": "postgresql://host/very-secret",
    "RESULTS": "mysql://user:very-secret@host/results",
    "PGPASSWORD": "very-secret",
    "HF_TOKEN": "very-secret",
    "OPENAI_API_KEY": "very-secret",
    "R2_SECRETKEY": "very-secret",
    "S3_ACCESSKEY": "very-secret",
    "S3_CREDS": "very-secret",
    "apikey": "very-secret",
    "DOCKER_AUTH_CONFIG": "very-secret",
}
PLAIN = {
    "MODEL_DIR": "/models",
    "TOKENIZERS_PARALLELISM": "false",
    "KEYBOARD": "de",
    "AUTHOR": "ann",
}
DUMPS_ENVIRONMENT = """
import json, os
def dump(sample):
    return {"txt": json.dumps(dict(os.environ)).encode()}
"""


@pytest.fixture(params=["exec", "map"])
def environment_step(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """A step whose records are what its code or its program finds in the environment."""
    if request.param == "exec":
        script = "import json, os; print(json.dumps(dict(os.environ)), file=open('$OUT/txt', 'w'))"
        return python(script, drop=["jpg", "cls"])
    (tmp_path / "dumping.py").write_text(DUMPS_ENVIRONMENT)
    return {"map": {"python": f"{tmp_path}/dumping.py:dump"}}


def test_programs_and_functions_get_no_secrets_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment_step: dict[str, Any]
) -> None:
    for name, value in {**SECRETS, **PLAIN}.items():
        monkeypatch.setenv(name, value)
    shards(tmp_path, "a")
    run_local(tmp_path, with_steps(environment_step))
    (found,) = map(json.loads, dict(payloads_in(tmp_path / "out")).values())
    assert found.keys() & SECRETS.keys() == set()
    assert "very-secret" not in str(found)
    assert {name: found[name] for name in PLAIN} == PLAIN


def test_the_operator_allows_variables_that_may_hold_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment_step: dict[str, Any]
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DSORT_CODE_ENV", "AWS_*, HF_TOKEN,DSORT_*")
    shards(tmp_path, "a")
    run_local(tmp_path, with_steps(environment_step))
    (found,) = map(json.loads, dict(payloads_in(tmp_path / "out")).values())
    # A token of dsort's own would let code act as the user, whatever is allowed.
    allowed = {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN"}
    assert found.keys() & SECRETS.keys() == allowed


def test_a_program_receives_places_and_key_and_no_shell_reads_them(tmp_path: Path) -> None:
    shards(tmp_path, "a; touch b", "c")
    step = {
        "exec": {"command": ["sh", "-c", 'printf "%s" "$1$$5" > "$OUT/txt"', "x", "$KEY ${KEY}"]}
    }
    run_local(tmp_path, with_steps(step))
    found = dict(payloads_in(tmp_path / "out"))
    assert found["a; touch b.txt"].startswith(b"a; touch b a; touch b")
    assert not (tmp_path / "b").exists()


def test_a_key_makes_no_option_of_an_argument(tmp_path: Path) -> None:
    shards(tmp_path, "--help", "-rf", "a")
    command = ["sh", "-c", 'printf "%s " "$@" > "$OUT/txt"', "sh"]
    for arguments, written in (
        (["./$KEY", "--key=$KEY", "-$KEY", "x${KEY}"], "./{0} --key={0} -{0} x{0} "),
        (["$$KEY"], "$KEY "),
    ):
        spec = with_steps({"exec": {"command": [*command, *arguments]}}, overwrite=True)
        run_local(tmp_path, spec)
        found = dict(payloads_in(tmp_path / "out"))
        for key in ("--help", "-rf", "a"):
            assert found[f"{key}.txt"] == written.format(key).encode()
    for argument in ("$KEY", "${KEY}.jpg"):
        step = {"exec": {"command": [*command, argument]}}
        with refused(tmp_path, TransformError):
            run_local(tmp_path, with_steps(step, overwrite=True))
        spec = with_steps(step, on_error="skip", rejects=True, overwrite=True)
        report = run_local(tmp_path, spec)
        assert {each["key"] for each in rejects_of(tmp_path, report)} == {"--help", "-rf"}
        assert dict(payloads_in(tmp_path / "out"))["a.txt"].startswith(b"a")


def timeout_for(words: str) -> str:
    """Short where the program is to take too long; a busy machine holds up the others, too."""
    return "1s" if words == "longer than 1 s" else "60s"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no such picture >&2; exit 3", "exit code 3: no such picture"),
        ("kill -9 $$$$", "signal 9"),
        ("sleep 60.0625", "longer than 1 s"),
        ("sleep 61.0625 & sleep 62.0625", "longer than 1 s"),
        ("setsid sleep 63.0625 & sleep 64.0625", "longer than 1 s"),
        ("while :; do echo flood >&2; done", "longer than 1 s"),
        ("mkdir $OUT/jpg", "no file"),
        ("ln -s /etc/passwd $OUT/txt", "no file"),
        ("mkfifo $OUT/txt", "no file"),
        ("touch $OUT/.hidden", "no extension"),
    ],
)
@pytest.mark.sample(keep=5)
def test_a_program_that_goes_wrong_at_a_record_loses_that_alone(
    script: str, words: str, tmp_path: Path, temporary: Path
) -> None:
    shards(tmp_path, "r0", "bad", "r1")
    step = shell(f'if [ "$KEY" = bad ]; then {script}; fi', timeout=timeout_for(words))
    report = run_local(tmp_path, with_steps(step, on_error="skip", rejects=True))
    assert [name for name in records_out(tmp_path) if name.endswith("jpg")] == ["r0.jpg", "r1.jpg"]
    (reject,) = rejects_of(tmp_path, report)
    assert (reject["key"], words in reject["error"]) == ("bad", True), reject
    assert count_of(report, "failed_records")[0] == 1
    assert list(temporary.iterdir()) == []
    sleeping = [
        p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [""])[0] == "sleep"
    ]
    assert [p for p in sleeping if p.info["cmdline"][-1].endswith(".0625")] == []


def test_a_program_that_forks_does_not_hold_up_its_record(tmp_path: Path) -> None:
    shards(tmp_path, "a")
    run_local(tmp_path, with_steps(shell("cp $IN/jpg $OUT/x; setsid sleep 59.0625 & exit 0")))
    assert dict(payloads_in(tmp_path / "out"))["a.x"] == b"a.jpg"
    assert [
        p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "59.0625"]
    ] == []


def test_a_program_has_no_more_memory_than_it_is_given(tmp_path: Path) -> None:
    shards(tmp_path, "a")
    step = python("bytearray(1 << 31)", resources={"memory": "1GiB"})
    with refused(tmp_path, TransformError, "record a", "code 1", "MemoryError"):
        run_local(tmp_path, with_steps(step))


def test_a_program_that_is_not_there_ends_the_job_before_it_begins(tmp_path: Path) -> None:
    shards(tmp_path, "a")
    with refused(tmp_path, TransformError, "exec"):
        run_local(tmp_path, with_steps({"exec": {"command": ["no-such-program"]}}))


FILTER = """
import sys, tarfile, io
given = tarfile.open(fileobj=sys.stdin.buffer, mode="r|")
made = tarfile.open(fileobj=sys.stdout.buffer, mode="w|")
for member in given:
    key = member.name.split(".")[0]
    data = given.extractfile(member).read().upper()
    {change}
    info = tarfile.TarInfo(member.name)
    info.size = len(data)
    made.addfile(info, io.BytesIO(data))
made.close()
"""


def tar_filter(change: str = "pass", **options: Any) -> dict[str, Any]:
    return python(FILTER.format(change=change), protocol="tar", **options)


def test_one_program_makes_a_tar_of_many_records(tmp_path: Path) -> None:
    keys = [f"r{n:02d}" for n in range(20)]
    shards(tmp_path, *keys)
    found = []
    for at, batch in enumerate([1, 7, 256]):
        step = tar_filter("if key == 'r03' or 'cls' in member.name: continue", batch_size=batch)
        spec = with_steps(step, output_format=f"{at}-%d", output_shard_records=100)
        report = run_local(tmp_path, spec)
        assert count_of(report, "left_out_by_steps")[0] == 1
        found.append((tmp_path / "out" / f"{at}-0.tar").read_bytes())
    assert found[0] == found[1] == found[2]
    with tarfile.open(fileobj=io.BytesIO(found[0])) as archive:
        assert archive.getnames() == [f"{key}.jpg" for key in keys if key != "r03"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("if key == 'bad': sys.exit('no such picture')", "exit code 1: no such picture"),
        ("if key == 'bad': import signal; signal.pause()", "longer than 1 s"),
        ("if key == 'bad': sys.stdout.buffer.write(b'x' * 700); sys.exit(0)", "tar"),
        (
            "if key == 'bad': member.name = member.name.replace('bad', 'other')",
            "begins with the key of no input record",
        ),
        ("if key == 'bad': member.name = '../' + member.name", "leads out"),
    ],
)
def test_of_many_records_those_are_lost_at_which_the_program_fails_alone(
    change: str, words: str, tmp_path: Path
) -> None:
    keys = [f"r{n}" for n in range(5)]
    shards(tmp_path, *keys[:2], "bad", *keys[2:])
    step = tar_filter(change, timeout=timeout_for(words))
    spec = with_steps(step, on_error="skip", rejects=True)
    report = run_local(tmp_path, spec)
    assert [name for name in records_out(tmp_path) if name.endswith("jpg")] == [
        f"{key}.jpg" for key in keys
    ]
    (reject,) = rejects_of(tmp_path, report)
    assert (reject["key"], words in reject["error"]) == ("bad", True), reject


def test_a_server_changes_members(tmp_path: Path, server: EtlServer) -> None:
    shards(tmp_path, "a", "d/ü")
    step = {"http": {"url": f"{server.url}/etl", "members": {"jpg": "txt"}, "args": "a b"}}
    run_local(tmp_path, with_steps(step))
    assert dict(payloads_in(tmp_path / "out")) == {
        "a.cls": b"a.cls",
        "a.txt": b"A.JPG",
        "d/ü.cls": "d/ü.cls".encode(),
        "d/ü.txt": "d/ü.jpg".encode().upper(),
    }
    assert server.seen == ["etl/a.jpg?etl_args=a+b", "etl/d/ü.jpg?etl_args=a+b"]


def test_a_server_changes_records_as_tars(tmp_path: Path, server: EtlServer) -> None:
    shards(tmp_path, "a", "b")
    run_local(tmp_path, with_steps({"http": {"url": server.url, "args": "echo", "drop": ["cls"]}}))
    assert dict(payloads_in(tmp_path / "out")) == {"a.jpg": b"a.jpg", "b.jpg": b"b.jpg"}


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("bad-500", "answered 500"),
        ("bad-stall", "longer than 1 s"),
        ("bad-cut", "cut its answer off"),
    ],
)
def test_a_server_that_goes_wrong_at_a_record_loses_that_alone(
    key: str, words: str, tmp_path: Path, server: EtlServer
) -> None:
    shards(tmp_path, "r0", key, "busy", "r1")
    step = {"http": {"url": server.url, "members": {"jpg": "jpg"}, "timeout": "1s"}}
    report = run_local(tmp_path, with_steps(step, on_error="skip", rejects=True))
    assert [
        dict(payloads_in(tmp_path / "out"))[f"{name}.jpg"] for name in ("r0", "busy", "r1")
    ] == [
        b"R0.JPG",
        b"BUSY.JPG",
        b"R1.JPG",
    ]
    (reject,) = rejects_of(tmp_path, report)
    assert (reject["key"], words in reject["error"]) == (key, True), reject


def test_a_server_that_is_not_there_is_named_with_the_record(tmp_path: Path) -> None:
    shards(tmp_path, "a")
    step = {"http": {"url": "http://127.0.0.1:9", "members": {"jpg": "jpg"}}}
    with refused(tmp_path, TransformError, "record a of shard in-0.tar", "refused"):
        run_local(tmp_path, with_steps(step))


class Capitals(HTTPMultiThreadedServer):  # type: ignore[misc]
    """A program on AIStore's own framework for ETL containers."""

    def transform(self, data: bytes, path: str, etl_args: str) -> bytes:
        return data.upper() + etl_args.encode()


def test_a_program_of_aistores_own_framework_changes_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIS_TARGET_URL", "http://127.0.0.1:1")
    container = Capitals(host="127.0.0.1", port=0)  # its start() wants the signals of the process
    server = ThreadedHTTPServer(("127.0.0.1", 0), container.RequestHandler, etl_server=container)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    shards(tmp_path, "a")
    url = f"http://127.0.0.1:{server.server_address[1]}"
    step = {"http": {"url": url, "members": {"jpg": "jpg"}, "args": "!"}}
    try:
        run_local(tmp_path, with_steps(step))
    finally:
        server.shutdown()
        server.server_close()
    assert dict(payloads_in(tmp_path / "out"))["a.jpg"] == b"A.JPG!"
