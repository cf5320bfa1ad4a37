"""What is built of the repository, ``dsort-shards`` and ``dsort-client``, and what is said where a
part is missing."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from dsort import installation
from dsort.cli.main import main
from dsort.containers import registry
from dsort.errors import SpecError
from dsort.storage.open import open_bucket
from dsort.version import dsort_version
from tests.support.commands import ROOT

CLIENT = ROOT / "packages/dsort-client"
OF_PYDANTIC = {"annotated_types", "pydantic_core", "typing_extensions"}
MODULES = {"httpx-sse": "httpx_sse", "pyyaml": "yaml"}
"""Modules whose names are not those of their packages."""

NOTHING_ELSE = """
import sys

class Refuser:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuser())
sys.path[:] = [{place!r}, *(each for each in sys.path if each != {root!r})]
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    directory = tmp_path_factory.mktemp("wheels")
    found = {}
    for name, source in (("dsort-shards", ROOT), ("dsort-client", CLIENT)):
        (built,) = WheelBuilder(str(source)).build(directory=str(directory), versions=["standard"])
        found[name] = zipfile.ZipFile(built)
    return found


@pytest.fixture(scope="module")
def client_alone(
    wheels: dict[str, zipfile.ZipFile], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The directory in which the wheel of the client is unpacked."""
    place = tmp_path_factory.mktemp("client")
    wheels["dsort-client"].extractall(place)
    return place


def project(directory: Path) -> dict[str, list[str]]:
    return tomllib.loads((directory / "pyproject.toml").read_text("utf-8"))["project"]


def run(place: Path, code: str) -> str:
    """What ``code`` prints with the files of the client alone, and without the libraries of the
    engine."""
    needs = {re.split(r"[.>]", each)[0] for each in project(ROOT)["dependencies"]}
    refused = (needs - {"braceexpand", "click", "msgspec", "pydantic", "rich"}) | {
        "lz4",
        "obstore",
        "re2",
    }
    script = NOTHING_ELSE.format(refused=refused, place=str(place), root=str(ROOT)) + code
    environment = {name: value for name, value in os.environ.items() if "DSORT" not in name}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=place, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def test_both_wheels_have_the_version_of_the_code(wheels: dict[str, zipfile.ZipFile]) -> None:
    for name, wheel in wheels.items():
        stem = f"{name.replace('-', '_')}-{dsort_version()}"
        metadata = wheel.read(f"{stem}.dist-info/METADATA").decode()
        assert f"Name: {name}\nVersion: {dsort_version()}\n" in metadata
        assert f"{stem}.dist-info/licenses/LICENSE" in wheel.namelist()
        assert (
            "dsort = dsort.__main__:main"
            in wheel.read(f"{stem}.dist-info/entry_points.txt").decode()
        )


def test_the_client_is_a_part_of_the_whole(wheels: dict[str, zipfile.ZipFile]) -> None:
    whole, part = (
        {
            each.filename: each.CRC
            for each in wheels[name].infolist()
            if "dist-info" not in each.filename
        }
        for name in ("dsort-shards", "dsort-client")
    )

    assert part.keys() - whole.keys() == {"dsort/dsort-client.txt"}
    assert all(whole[name] == crc for name, crc in part.items() if name in whole)
    assert {"dsort/py.typed", "dsort/client/client.py", "dsort/cli/schedule.py"} <= part.keys()
    assert not {"dsort/api.py", "dsort/workers/tasks.py"} & part.keys()


def test_the_client_imports_nothing_that_it_does_not_depend_on(
    wheels: dict[str, zipfile.ZipFile],
) -> None:
    wheel = wheels["dsort-client"]
    needs = {each.partition(">")[0] for each in project(CLIENT)["dependencies"]}
    known = {MODULES.get(each, each) for each in needs} | OF_PYDANTIC
    for name in wheel.namelist():
        if not name.endswith(".py"):
            continue
        for node in ast.parse(wheel.read(name)).body:  # what only a function imports comes later
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            tops = {each.partition(".")[0] for each in names} - set(sys.stdlib_module_names)
            assert tops <= known | {"dsort"}, f"{name}: add it to dsort-client, or import it later"


def test_what_the_client_depends_on_has_the_bounds_of_the_whole() -> None:
    whole = project(ROOT)
    known = {*whole["dependencies"], *whole["optional-dependencies"]["client"]}  # type: ignore[call-overload]
    assert set(project(CLIENT)["dependencies"]) <= known


@pytest.fixture(scope="module")
def said(client_alone: Path) -> list[str]:
    """What the client alone says, a piece for each question."""
    (client_alone / "spec.yaml").write_text("input_bck: a\noutput_bck: b\n")
    asked = [
        ["--version"],
        ["ls", "--help"],
        ["spec", "schema"],
        ["verify", "a"],
        ["show"],
        ["start", "-f", "spec.yaml", "--server", "http://127.0.0.1:1"],
        ["schedule", "ls", "--server", "http://127.0.0.1:1"],
        ["ls", "a", "--server", "http://127.0.0.1:1"],
        ["inspect", "a/b.tar", "--server", "http://127.0.0.1:1"],
        ["cat", "a/b.tar", "--server", "http://127.0.0.1:1"],
        ["gc", "a", "--server", "http://127.0.0.1:1"],
        ["token", "ls", "--server", "http://127.0.0.1:1"],
    ]
    code = f"""
import dsort
from dsort.cli.main import main
sys.stderr = sys.stdout
for each in {asked!r}:
    print("=> ", main(each), "=====", sep="", flush=True)
dsort.Client("http://127.0.0.1:1").close()
try:
    dsort.run
except ImportError as error:
    print(error)
"""
    return run(client_alone, code).split("=====\n")


def test_verbs_of_a_service_come_as_far_as_the_service_with_the_client_alone(
    said: list[str],
) -> None:
    version, usage, schema, _, _, *asking, _ = said
    assert version == f"dsort {dsort_version()} (dsort-client)\n=> 0"
    assert usage.endswith("=> 0")
    assert schema.endswith("}\n=> 0")
    for each in asking:
        assert "there is no service at http://127.0.0.1:1" in each
        assert each.endswith("=> 6")


def test_what_the_client_has_not_is_said_to_be_in_the_whole(said: list[str]) -> None:
    _, _, _, verify, show, *_, python = said
    assert verify.startswith(
        "error: `dsort verify` is for dsort-shards, and this is dsort-client\n"
    )
    assert show.startswith("error: `dsort show` without a service is for dsort-shards, and ")
    for each in (verify, show):
        assert "`pip uninstall dsort-client`, then `pip install dsort-shards`" in each
        assert each.endswith("=> 2")
    assert python.startswith("dsort.run is not in dsort-client, but in dsort-shards: pip ")


def test_both_in_one_place_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not installation.is_mixed()
    (tmp_path / "dsort-client.txt").touch()
    assert installation.is_part(tmp_path)
    (tmp_path / "api.py").touch()
    assert installation.is_mixed(tmp_path)
    assert not installation.is_part(tmp_path)


def test_who_has_both_is_told_which_to_remove(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import dsort

    monkeypatch.setattr("dsort.cli.main.is_mixed", lambda: True)
    assert main(["show"]) == 2
    assert (
        "hint: dsort-shards has all that dsort-client has: `pip uninstall" in capfd.readouterr().err
    )
    monkeypatch.setattr(installation, "is_mixed", lambda: True)
    with pytest.raises(ImportError, match="are both installed"):
        _ = dsort.SpecError


# --- extras --------------------------------------------------------------------------------------


def test_an_extra_that_is_missing_is_named_with_its_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installation, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match="httpx, httpx_sse are missing") as found:
        installation.need_extra("client")
    assert found.value.hint == "`pip install 'dsort-shards[client]'` installs it"


def test_lz4_and_clouds_are_extras(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("lz4", "lz4.block", "obstore"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("dsort.containers.codecs.lz4", "dsort.storage.obstore"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    assert registry.is_called("a.tar.lz4", ".tar.gz") is False  # a neighbour does no harm
    with pytest.raises(SpecError, match="reads and writes lz4, which is not installed") as found:
        registry.codec_of("a.tar.lz4")
    assert "dsort-shards[lz4]" in found.value.hint
    with pytest.raises(SpecError, match="speaks with gs:// buckets") as found:
        open_bucket("gs://bucket/prefix", root=tmp_path)
    assert "dsort-shards[clouds]" in found.value.hint


def test_extras_are_those_of_the_project() -> None:
    declared = project(ROOT)["optional-dependencies"]
    assert installation.EXTRAS.keys() == declared.keys() - {"all", "bench", "dev"}  # type: ignore[attr-defined]
