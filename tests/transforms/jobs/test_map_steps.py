"""Steps that run a user's Python function: what it makes of records, and what it may do wrong."""

from __future__ import annotations

import contextlib
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import psutil
import pytest

from dsort import api
from dsort.errors import (
    CodeRefusedError,
    TransformError,
)
from dsort.options import RunOptions
from dsort.storage.network_policy import FetchPolicy
from tests.support.datasets import Member, Shard, files_of, payloads_in, read_shard, write_shards
from tests.support.engine import (
    count_of,
    record,
    records_out,
    refused,
    run_local,
    spec_of,
    verify_local,
)
from tests.support.internals import JobReport, manifest_name, reactions_name, rejects_name
from tests.support.user_functions import WAYS

pytestmark = pytest.mark.usefixtures("workers_here")

FUNCTIONS = "tests.support.user_functions"


DICE = """
import contextlib
import json
import pathlib

def thrown(sample, dice):
    if sample["__key__"].endswith("r07"):
        raise ValueError("seven")
    said = {"n": json.loads(sample["json"])["n"], "dice": pathlib.Path(dice).read_text()}
    return {**sample, "json": said}
"""


def with_code(name: str, kind: str = "map", **options: Any) -> dict[str, Any]:
    """A step that runs a function of the tests."""
    return {kind: {"python": f"{FUNCTIONS}:{name}", **options}}


def with_steps(*steps: dict[str, Any], on_error: str = "fail", **fields: Any) -> dict[str, Any]:
    transform = {"steps": list(steps), "on_error": on_error}
    for name in ("max_errors", "rejects"):
        if name in fields:
            transform[name] = fields.pop(name)
    return spec_of(transform=transform, **fields)


def shards(root: Path, *keys: str) -> None:
    """One shard with these records."""
    members = [member for key in keys for member in record(key, "jpg", "cls")]
    write_shards(root / "in", {"in-0.tar": Shard(members)})


def manifest_of(root: Path, report: JobReport) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "out" / manifest_name(report.job_id)).read_bytes())
    return found


def rejects_of(root: Path, report: JobReport) -> list[dict[str, Any]]:
    path = root / "out" / rejects_name(report.job_id)
    return [json.loads(line) for line in path.read_text().splitlines()]


def user_processes() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended, waited for or not
            if "dsort.user_code.child" in process.cmdline():
                found.append(process)
    return found


def test_a_function_makes_other_records_and_leaves_some_out(tmp_path: Path) -> None:
    shards(tmp_path, "a1", "b2", "c3")
    report = run_local(tmp_path, with_steps(with_code("longer", args={"times": 3}, drop=["cls"])))
    assert dict(payloads_in(tmp_path / "out")) == {
        "b2.jpg": b"b2.jpg" * 3,
        "b2.n.txt": b"2",
        "c3.jpg": b"c3.jpg" * 3,
        "c3.n.txt": b"2",
    }
    assert count_of(report, "left_out_by_steps") == (1, ("map in in-0.tar",))
    verified = verify_local(tmp_path, report)
    assert verified.problems == ()
    assert "not run again" in verified.warnings[0]
    assert user_processes() == []


def test_the_manifest_says_which_code_ran(tmp_path: Path) -> None:
    shards(tmp_path, "a")
    report = run_local(tmp_path, with_steps({"sample": {"fraction": 1}}, with_code("same")))
    (code,) = manifest_of(tmp_path, report)["code"]
    assert (code["step"], code["kind"]) == (1, "map")
    assert len(code["source_sha256"]) == 64
    assert code["packages"]["numpy"]


def test_values_are_decoded_and_encoded_by_extension(tmp_path: Path) -> None:
    members = [Member("a.jpg", b"12345"), Member("a.info.json", b'{"known": "\xc3\xbc"}')]
    write_shards(tmp_path / "in", {"in-0.tar": Shard(members)})
    run_local(tmp_path, with_steps(with_code("scored", decode={"info.json": "json"})))
    found = dict(payloads_in(tmp_path / "out"))
    assert json.loads(found["a.json"]) == {"length": 5, "known": "ü"}
    assert found["a.x"] == b"5"


def test_one_record_becomes_several(tmp_path: Path) -> None:
    shards(tmp_path, "a", "d/b")
    run_local(tmp_path, with_steps(with_code("doubled", "flat_map", keys="{key}/{i:03d}")))
    assert records_out(tmp_path) == ["a/000.cls", "a/001.jpg", "d/b/000.cls", "d/b/001.jpg"]


def test_a_class_is_made_once_and_gets_lists(tmp_path: Path) -> None:
    shards(tmp_path, *(f"r{n:03d}" for n in range(10)))
    step = with_code("Counter", args={"word": "hello"}, batch_size=4, drop=["jpg", "cls"])
    run_local(tmp_path, with_steps(step))
    assert dict(payloads_in(tmp_path / "out")) == {
        f"r{n:03d}.txt": f"hello r{n:03d}".encode() for n in range(10)
    }


def test_random_numbers_depend_on_seed_step_and_key_alone(tmp_path: Path) -> None:
    names = [f"r{n}" for n in range(8)]
    found = []
    for at, (keys, steps) in enumerate(
        [
            (names, [with_code("drawn")]),
            (names[::-1], [with_code("drawn", concurrency=2)]),
            (names, [with_code("drawn", seed=1)]),
            (names, [{"sample": {"fraction": 1}}, with_code("drawn")]),
        ]
    ):
        shards(tmp_path / str(at), *keys)
        run_local(tmp_path / str(at), with_steps(*steps))
        found.append(dict(payloads_in(tmp_path / str(at) / "out")))
    assert found[0] == found[1]
    assert len(set(found[0].values())) == len(names)
    assert not set(found[0].values()) & (set(found[2].values()) | set(found[3].values()))


def test_what_users_print_gets_into_no_record(tmp_path: Path) -> None:
    shards(tmp_path, "a", "b")
    run_local(tmp_path, with_steps(with_code("printing")))
    assert dict(payloads_in(tmp_path / "out"))["b.jpg"] == b"b.jpg"


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("output", [".tar", ".jsonl.gz"])
def test_verify_runs_code_once_more_if_asked(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [Member(f"r{n:02d}.json", b'{"n": %d}' % n) for n in range(12)]
    write_shards(tmp_path / "in", {f"in-{n}.tar": Shard(members[n::2]) for n in range(2)})
    (tmp_path / "code.py").write_text(DICE)
    python, dice = f"{tmp_path}/code.py:thrown", tmp_path / "dice"
    dice.write_text("1")
    steps = [
        {"rekey": "{n:03d}-{key}"},
        {"map": {"python": python, "args": {"dice": str(dice)}}},
        {"sample": {"fraction": 0.9}},
    ]
    spec = with_steps(*steps, on_error="skip", output_extension=output, duplicate_keys="rename")
    report = run_local(tmp_path, spec)
    assert count_of(report, "failed_records")[0] == 1
    manifest = (tmp_path / "out" / manifest_name(report.job_id)).read_bytes()

    def verified() -> Any:
        return api.verify(manifest, run_code=True, options=RunOptions(root=tmp_path))

    found = verified()
    assert (found.problems, found.warnings) == ((), ())
    dice.write_text("2")
    assert verified().problem_count > 0
    dice.write_text("1")
    (tmp_path / "code.py").write_text(DICE + "# changed\n")
    found = verified()
    assert found.problems == ()
    assert "transform.steps[1].map has another source than" in found.warnings[0]
    dice.unlink()
    assert verified().problem_count > 0
    assert user_processes() == []


@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.sample(keep=6)
def test_a_record_that_goes_wrong_is_left_out_counted_and_named(way: str, tmp_path: Path) -> None:
    keys = [f"r{n}" for n in range(5)]
    shards(tmp_path, *keys[:2], "bad", *keys[2:])
    limits = {"timeout": "1s"} if way == "hangs" else {}
    step = with_code("broken", args={"how": way}, resources={"memory": "8GiB"}, **limits)
    report = run_local(tmp_path, with_steps(step, on_error="skip", rejects="payload"))
    assert [name for name in records_out(tmp_path) if name.endswith("jpg")] == [
        f"{key}.jpg" for key in keys
    ]
    count, (name,) = count_of(report, "failed_records")
    assert count == 1
    assert name.startswith("in-0.tar: bad (map: ")
    (reject,) = rejects_of(tmp_path, report)
    assert (reject["key"], reject["shard"]) == ("bad", "in-0.tar")
    assert reject["step"] == "transform.steps[0].map"
    assert reject["error"] in name
    assert {ext: b64decode(data) for ext, data in reject["members"].items()} == {
        "jpg": b"bad.jpg",
        "cls": b"bad.cls",
    }
    assert manifest_of(tmp_path, report)["rejects_file"] == rejects_name(report.job_id)
    assert "bad" in (tmp_path / "out" / reactions_name(report.job_id)).read_text()


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize(
    ("on_error", "left", "lost"),
    [
        ("keep", ["r0", "bad", "r1"], 0),
        ("stop", ["r0"], 1),
        ("skip_shard", [], 2),
    ],
)
@pytest.mark.parametrize("way", ["raises", "is killed"])
def test_what_becomes_of_a_record_that_failed_and_of_its_shard(
    way: str, on_error: str, left: list[str], lost: int, tmp_path: Path
) -> None:
    shards(tmp_path, "r0", "bad", "r1")
    write_shards(tmp_path / "in", {"in-1.tar": Shard(record("other", "jpg", "cls"))})
    spec = with_steps(with_code("broken", args={"how": way}), on_error=on_error, rejects=True)
    report = run_local(tmp_path, spec)
    names = [name.removesuffix(".jpg") for name in records_out(tmp_path) if name.endswith(".jpg")]
    assert names == [*left, "other"]
    assert dict(payloads_in(tmp_path / "out"))["other.cls"] == b"other.cls"
    assert count_of(report, "failed_records")[0] == 1
    assert count_of(report, "lost_with_failed")[0] == lost
    rejected = {each["key"] for each in rejects_of(tmp_path, report)}
    assert rejected == {"bad"} | ({"r0", "bad", "r1"} - set(left) if lost else set())


def test_a_record_that_fails_ends_the_job_and_is_named(tmp_path: Path) -> None:
    shards(tmp_path, "r0", "bad")
    words = [
        "record bad of shard in-0.tar",
        "ValueError: cannot do bad (user_functions.py:",
        "skip",
    ]
    with refused(tmp_path, TransformError, *words):
        run_local(tmp_path, with_steps(with_code("broken", args={"how": "raises"})))


def test_more_errors_than_allowed_end_the_job(tmp_path: Path) -> None:
    shards(tmp_path, *(f"r{n}" for n in range(9)), "bad")
    step = with_code("broken", args={"how": "raises"})
    with refused(tmp_path, TransformError, "1 of 10 records", "9.9%", "bad"):
        run_local(tmp_path, with_steps(step, on_error="skip", max_errors="9.9%"))
    with refused(tmp_path, TransformError, "max_errors is 0"):
        run_local(tmp_path, with_steps(step, on_error="skip", max_errors=0))
    for allowed in ("10%", 1):
        spec = with_steps(step, on_error="skip", max_errors=allowed, overwrite=True)
        assert run_local(tmp_path, spec).records == 9


def test_a_record_at_which_a_process_died_once_is_done_by_another(tmp_path: Path) -> None:
    shards(tmp_path, "r0", "bad", "r1")
    step = with_code("DiesOnce", args={"marker": str(tmp_path / "marker")})
    report = run_local(tmp_path, with_steps(step))
    assert (tmp_path / "marker").exists()
    assert report.records == 3
    assert count_of(report, "failed_records")[0] == 0


def test_code_that_ends_the_job_no_more_as_it_was_is_a_problem_to_verify(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in-0.tar": Shard([Member("r1.json", b'{"n": 1}')])})
    (tmp_path / "code.py").write_text(DICE)
    (tmp_path / "dice").write_text("1")
    args = {"dice": str(tmp_path / "dice")}
    report = run_local(
        tmp_path, with_steps({"map": {"python": f"{tmp_path}/code.py:thrown", "args": args}})
    )
    (tmp_path / "dice").unlink()
    (problem,) = verify_local(tmp_path, report, run_code=True).problems
    assert (problem.kind, problem.shard) == ("code", "in-0.tar")
    assert "record r1 of shard in-0.tar failed: FileNotFoundError" in problem.text


def test_what_leaks_goes_on_in_another_process(tmp_path: Path) -> None:
    shards(tmp_path, *(f"r{n:03d}" for n in range(40)))
    step = with_code("Leaking", resources={"memory": "200MiB"})
    report = run_local(tmp_path, with_steps(step))
    assert report.records == 40


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("nowhere.at_all:f", "nowhere"),
        (f"{FUNCTIONS}:nothing", FUNCTIONS),
        ("nowhere.py:f", "nowhere.py"),
        (f"{FUNCTIONS}:WAYS", "WAYS"),
        (f"{FUNCTIONS}:Counter", "word"),
        ("tests.support.code_that_dies:anything", "code 3: goodbye"),
    ],
)
def test_code_that_cannot_be_loaded_ends_the_job_before_it_begins(
    place: str, named: str, tmp_path: Path
) -> None:
    shards(tmp_path, "a")
    spec = with_steps({"map": {"python": place}}, on_error="skip")
    with refused(tmp_path, TransformError, "map", named):
        run_local(tmp_path, spec)


def test_processes_have_gpus_of_their_own_and_threads_as_they_have_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,9")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    shards(tmp_path, "a")
    run_local(tmp_path, with_steps(with_code("told")))
    assert dict(payloads_in(tmp_path / "out")) == {
        "a.cuda_visible_devices.txt": b"7,9",
        "a.omp_num_threads.txt": b"1",
    }
    step = with_code("told", resources={"num_gpus": 1, "num_cpus": 2})
    run_local(tmp_path, with_steps(step, overwrite=True))
    assert dict(payloads_in(tmp_path / "out"))["a.cuda_visible_devices.txt"] in (b"7", b"9")
    assert dict(payloads_in(tmp_path / "out"))["a.omp_num_threads.txt"] == b"2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with refused(tmp_path, TransformError, "1 GPU", "num_gpus: 0.5"):
        run_local(tmp_path, with_steps(step))


def test_code_that_changes_while_the_job_runs_ends_it(tmp_path: Path) -> None:
    for number in range(2):
        members = record(f"r{number}", "jpg")
        write_shards(tmp_path / "in", {f"in-{number}.tar": Shard(tuple(members))})
    (tmp_path / "code.py").write_text(
        "import os\n"
        "def changed(sample):\n"
        "    with open(__file__, 'a') as file: file.write('# more\\n')\n"
        "    os._exit(1)\n"
    )
    step = {"map": {"python": f"{tmp_path}/code.py:changed"}}
    with refused(tmp_path, TransformError):
        run_local(tmp_path, with_steps(step, on_error="skip"))


@pytest.mark.parametrize(
    "fields",
    [
        {"algorithm": {"kind": "alphanumeric", "decreasing": True}},
        {"algorithm": {"kind": "content", "extension": ".jpg", "content_key_type": "string"}},
        {
            "output_format": None,
            "ekm": {"low-%02d": ["^r[0-4]"], "high-%02d": ["^r[5-9]"]},
            "algorithm": {"kind": "md5"},
        },
    ],
    ids=["by key", "by content", "key map"],
)
def test_orders_of_a_few_records_run_code_once(fields: dict[str, Any], tmp_path: Path) -> None:
    keys = [f"r{n}" for n in range(10)]
    shards(tmp_path, *keys)
    (tmp_path / "code.py").write_text(
        "import pathlib\n"
        "def noted(sample):\n"
        "    with pathlib.Path(__file__).with_name('done.txt').open('a') as file:\n"
        "        file.write(sample['__key__'] + '\\n')\n"
        "    return sample\n"
    )
    spec = with_steps({"map": {"python": f"{tmp_path}/code.py:noted"}}, **fields)
    spec = {name: value for name, value in spec.items() if value is not None}
    assert run_local(tmp_path, spec, workers=2).records == 10
    assert sorted((tmp_path / "done.txt").read_text().split()) == keys


def test_no_code_is_run_for_others(tmp_path: Path) -> None:
    shards(tmp_path, "a")
    spec = with_steps(with_code("same"))
    for options in ({"runs_code": False}, {"fetch": FetchPolicy()}):
        with refused(tmp_path, CodeRefusedError, "transform.steps[0]", "--run-code"):
            run_local(tmp_path, spec, **options)


def test_members_that_stay_as_they_are_keep_their_headers(tmp_path: Path) -> None:
    keys = [f"{n:02d}" for n in range(20)]
    shards(tmp_path, *keys)
    (data,) = files_of(tmp_path / "in").values()
    before = {member.name: member for member in read_shard(data)}
    run_local(tmp_path, with_steps(with_code("partly"), with_code("same")))
    found = [member for out in files_of(tmp_path / "out").values() for member in read_shard(out)]
    kept = [each for each in found if before.get(each.name) == each]
    same = [each for each in found if each.name in before and not each.payload.endswith(b"!")]
    assert kept == same
    assert len(keys) < len(kept) < len(found) < 2 * len(keys) + 10
