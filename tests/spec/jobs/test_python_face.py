"""dsort from Python: ``load_spec``, ``run`` with ``runtime`` and ``on_progress``, ``plan``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dsort
from dsort.errors import SpecError
from dsort.version import VERSION
from tests.support.datasets import write_shards
from tests.support.engine import shard_of
from tests.support.internals import Event, PhaseDone, Progress
from tests.support.refusals import raises

SPEC = """
input_bck: images
output_bck: shuffled
output_format: "x-%d"
output_shard_size: 10KB
algorithm: {kind: shuffle, seed: 1}
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dsort.JobSpec:
    write_shards(tmp_path / "images", {"a.tar": shard_of("1", "2"), "b.tar": shard_of("3")})
    (tmp_path / "spec.yaml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)  # the data root, unless options say otherwise
    return dsort.load_spec(tmp_path / "spec.yaml")


def test_run_tells_progress_and_returns_the_report(spec: dsort.JobSpec) -> None:
    steps: list[Progress] = []
    events: list[Event] = []
    report = dsort.run(spec, runtime="local", on_progress=steps.append, on_event=events.append)
    assert (report.state, report.records) == ("finished", 3)
    assert Path("shuffled", report.manifest_name or "").is_file()
    assert {each.phase for each in steps} == {"resolve", "extract", "plan", "create", "commit"}
    assert all(isinstance(each, Progress) for each in steps)
    assert [e.phase for e in events if isinstance(e, PhaseDone)][-1] == "commit"


def test_plan_says_the_same_and_writes_nothing(spec: dsort.JobSpec) -> None:
    planned = dsort.plan(spec)
    assert not Path("shuffled").exists()
    assert planned.records == dsort.run(spec).records


FIELDS = {
    "input_bck": "images",
    "output_bck": "shuffled",
    "output_format": "x-%d",
    "output_shard_size": "10KB",
    "algorithm": {"kind": "shuffle", "seed": 1},
}


def test_a_spec_may_be_a_dict(spec: dsort.JobSpec) -> None:
    assert dsort.load_spec(FIELDS) == spec
    assert dsort.plan(FIELDS).records == 3
    assert dsort.run(FIELDS).records == 3
    with raises(SpecError, "'10,KB'", paths=["output_shard_size", "output_forma"]):
        dsort.run(FIELDS | {"output_shard_size": "10,KB", "output_forma": "x"})
    with pytest.warns(UserWarning, match="bck"):
        dsort.plan({("bck" if name == "input_bck" else name): FIELDS[name] for name in FIELDS})


def test_an_unknown_runtime_is_refused(spec: dsort.JobSpec) -> None:
    with raises(SpecError, "slurm"):
        dsort.run(spec, runtime="slurm")


def test_older_names_are_reported_as_warnings() -> None:
    with pytest.warns(UserWarning, match="input_bck"):
        dsort.load_spec('{"bck": "a", "output_format": "x-{0..9}"}')


@pytest.mark.parametrize("source", [None, [], 3])
def test_what_is_no_spec_is_reported_as_an_error_of_dsort(source: object) -> None:
    with raises(SpecError):
        dsort.run(source)  # type: ignore[arg-type]


def test_every_error_can_be_imported_from_dsort() -> None:
    from dsort import SpecError as ImportedSpecError
    from dsort import errors

    assert ImportedSpecError is SpecError
    raised = {name for name in errors.__all__ if name.endswith("Error")}
    kinds = {each.__name__ for each in _children(errors.DsortError)}
    assert kinds <= raised
    assert raised <= set(dsort.__all__)
    assert set(dsort.__all__) <= set(dir(dsort))
    assert all(getattr(dsort, name) is not None for name in dsort.__all__)


def test_a_notebook_completes_public_names_alone_and_knows_the_version() -> None:
    names = {name for name in dir(dsort) if not name.startswith("__")}
    assert names == set(dsort.__all__)
    assert dsort.__version__ == VERSION


def _children(kind: type[Exception]) -> set[type[Exception]]:
    below = {each for each in kind.__subclasses__() if each.__module__ == "dsort.errors"}
    return below.union(*(_children(each) for each in below))


def test_a_public_name_is_loaded_when_it_is_first_used() -> None:
    script = """
import sys, dsort
assert not [name for name in sys.modules if name.startswith("dsort.")], sys.modules
dsort.SpecError
assert "numpy" not in sys.modules and "pydantic" not in sys.modules
assert set(dsort.__all__) <= set(dir(dsort))
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_spec_is_read_without_what_only_data_need() -> None:
    script = """
import sys
from dsort.spec.load import parse_spec
spec = {"input_bck": "a", "input_format": "a-{0..2}", "output_format": "b-%d"}
parse_spec({**spec, "output_shard_count": 3, "algorithm": {"kind": "shuffle"}})
heavy = {"numpy", "pyarrow", "boto3", "ray", "isal", "lz4", "backports", "orjson", "xxhash"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_client_without_its_extra_says_what_to_install() -> None:
    script = """
import sys, dsort
sys.modules["httpx"] = None
dsort.load_spec, dsort.run
try:
    dsort.Client
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout == (
        'dsort.Client needs the extra "client": pip install "dsort-shards[client]"\n'
    )
