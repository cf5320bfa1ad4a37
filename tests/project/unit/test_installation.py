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

import click
import pytest
from hatchling.builders.wheel import WheelBuilder

from dsort import installation
from dsort.cli.main import whole_app
from dsort.containers import registry
from dsort.errors import SpecError
from dsort.storage.open import open_bucket
from dsort.version import dsort_version
from tests.support.commands import ROOT
from tests.support.refusals import raises

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
    for name, script in (
        ("dsort-shards", "dsort = dsort.__main__:main"),
        ("dsort-client", "dsort-client = dsort_client.__main__:main"),
    ):
        wheel, stem = wheels[name], f"{name.replace('-', '_')}-{dsort_version()}"
        metadata = wheel.read(f"{stem}.dist-info/METADATA").decode()
        assert f"Name: {name}\nVersion: {dsort_version()}\n" in metadata
        assert f"{stem}.dist-info/licenses/LICENSE" in wheel.namelist()
        entry_points = wheel.read(f"{stem}.dist-info/entry_points.txt").decode()
        assert entry_points.split("\n")[1:-1] == [script]


def test_the_wheels_have_no_file_in_common(wheels: dict[str, zipfile.ZipFile]) -> None:
    whole, part = ({*wheels[name].namelist()} for name in ("dsort-shards", "dsort-client"))

    assert whole & part == set()
    assert {name.partition("/")[0] for name in part} == {
        "dsort_client",
        f"dsort_client-{dsort_version()}.dist-info",
    }
    modules = {name.removeprefix("dsort_client/") for name in part if name.endswith(".py")}
    assert modules <= {name.removeprefix("dsort/") for name in whole}
    assert {"py.typed", "client/client.py", "cli/schedule.py"} <= {
        name.removeprefix("dsort_client/") for name in part
    }
    assert not {"api.py", "workers/tasks.py"} & modules


def modules_of(wheel: zipfile.ZipFile) -> dict[str, str]:
    return {name: wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".py")}


def test_the_client_imports_nothing_of_the_whole(wheels: dict[str, zipfile.ZipFile]) -> None:
    for name, text in modules_of(wheels["dsort-client"]).items():
        for node in ast.walk(ast.parse(text)):
            named = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                named = [node.module or ""]
            assert not [each for each in named if each.partition(".")[0] == "dsort"], name
            if isinstance(node, ast.Constant) and isinstance(node.value, str):  # import_module
                assert not re.match(r"dsort\.\w+\.", node.value), f"{name}: {node.value}"


def test_texts_of_the_client_name_the_commands_that_it_has(
    wheels: dict[str, zipfile.ZipFile],
) -> None:
    text = "\n".join(modules_of(wheels["dsort-client"]).values())
    for name, command in whole_app().commands.items():
        is_there = isinstance(command, click.Group) or "server" in {
            each.name for each in command.params
        }
        wrong = f"`dsort {name}`" if is_there else f"`dsort-client {name}`"
        assert wrong not in text
    assert "`dsort-client start -f`" in text


def test_all_that_the_client_imports_at_once_comes_with_it(
    wheels: dict[str, zipfile.ZipFile],
) -> None:
    needs = {each.partition(">")[0] for each in project(CLIENT)["dependencies"]}
    known = {MODULES.get(each, each) for each in needs} | OF_PYDANTIC
    for name, text in modules_of(wheels["dsort-client"]).items():
        for node in ast.parse(text).body:  # what only a function imports comes later
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            tops = {each.partition(".")[0] for each in names} - set(sys.stdlib_module_names)
            assert tops <= known | {"dsort_client"}, f"{name}: add it, or import it later"


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
import dsort_client
from dsort_client.cli.main import main
sys.stderr = sys.stdout
for each in {asked!r}:
    print("=> ", main(each), "=====", sep="", flush=True)
dsort_client.Client("http://127.0.0.1:1").close()
every_error = dsort_client.DsortError
built = dsort_client.read("a").write("b/x-%03d.tar", size="1MB")
print(built.to_dict()["output_bck"], issubclass(dsort_client.CodeRefusedError, every_error))
print([name for name in dir(dsort_client) if getattr(dsort_client, name, None) is None])
print(dsort_client.__version__, "dsort" in sys.modules)
"""
    return run(client_alone, code).split("=====\n")


def test_verbs_of_a_service_come_as_far_as_the_service_with_the_client_alone(
    said: list[str],
) -> None:
    version, usage, schema, _, _, *asking, _ = said
    assert version == f"dsort-client {dsort_version()}\n=> 0"
    assert usage.endswith("=> 0")
    assert schema.endswith("}\n=> 0")
    for each in asking:
        assert "there is no service at http://127.0.0.1:1" in each
        assert each.endswith("=> 6")


def test_what_the_client_has_not_is_said_to_be_in_the_whole(said: list[str]) -> None:
    _, _, _, verify, show, *_ = said
    assert verify.startswith(
        "error: `dsort-client verify` is for dsort-shards, and this is dsort-client\n"
    )
    assert show.startswith("error: `dsort-client show` without a service is for dsort-shards, ")
    for each in (verify, show):
        assert "`pip install dsort-shards` installs it, beside dsort-client" in each
        assert each.endswith("=> 2")


def test_public_names_of_the_client_load_without_the_whole(said: list[str]) -> None:
    *_, python = said
    assert python == f"b True\n[]\n{dsort_version()} False\n"


def test_the_client_tells_containers_apart_that_it_cannot_read(client_alone: Path) -> None:
    code = """
from dsort_client.containers.registry import is_called
print(is_called("a.jsonl", ".tar"), is_called("a.ndjson.gz", ".jsonl"))
"""
    assert run(client_alone, code) == "False True\n"


# --- extras --------------------------------------------------------------------------------------


def test_an_extra_that_is_missing_is_named_with_its_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installation, "find_spec", lambda name: None)
    with raises(SpecError, "httpx, httpx_sse", hint="`pip install 'dsort-shards[client]'`"):
        installation.need_extra("client")


def test_lz4_and_clouds_are_extras(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("lz4", "lz4.block", "obstore"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("dsort.containers.codecs.lz4", "dsort.storage.obstore"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    assert registry.is_called("a.tar.lz4", ".tar.gz") is False  # a neighbour does no harm
    with raises(SpecError, "lz4", hint="dsort-shards[lz4]"):
        registry.codec_of("a.tar.lz4")
    with raises(SpecError, "gs://", hint="dsort-shards[clouds]"):
        open_bucket("gs://bucket/prefix", root=tmp_path)


def test_extras_are_those_of_the_project() -> None:
    declared = project(ROOT)["optional-dependencies"]
    assert installation.EXTRAS.keys() == declared.keys() - {"all", "bench", "dev"}  # type: ignore[attr-defined]
