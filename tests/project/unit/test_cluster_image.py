"""The images of ``cluster/Dockerfile``: built of files that are there, without root and tools; and
each manifest runs a program that the image's ENTRYPOINT starts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cluster_files import (
    image,
    manifests,
    parse_command,
    project,
    read_documents,
    read_text,
    read_yaml,
    walk,
)
from tests.support.commands import ROOT
from tests.support.doc_pages import blocks, hand_written

TARGETS = {"dsort": "ray", "dsort-service": "service"}
"""The target that each image is built from."""
PROGRAMS = {"dsort", "ray", "sh", "bash", "sleep"}


def test_the_images_are_built_of_files_that_are_there_and_not_ignored() -> None:
    allowed = [line[1:] for line in read_text("../.dockerignore").splitlines() if line[:1] == "!"]
    copies = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", read_text("Dockerfile"))
    sources = [source for copy_ in copies for source in copy_.split()]

    assert {"dsort", "pyproject.toml", "cluster/requirements.lock"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source in allowed, source
    assert project()["project"]["readme"] in sources
    assert set(project()["project"]["license-files"]) <= set(sources)


def test_the_images_have_neither_root_nor_tools() -> None:
    run = image("run")

    assert re.findall(r"(?m)^USER (\S+)", run) == ["1000:1000"]
    assert re.findall(r"FROM (\S+)", run) == re.findall(r"FROM (\S+)", image("build"))
    assert "--without-pip" in image("build")
    assert "pip uninstall" in run
    assert not re.search(r"\b(gcc|g\+\+|build-essential|pip install)\b", run)
    for target in TARGETS.values():
        assert image(target).startswith(f"FROM run AS {target}\n")
        assert "USER" not in image(target)


# --- the ENTRYPOINT, and each container that names the image --------------------------------------


def entrypoint() -> list[str]:
    """The program of both images, which starts the words behind it."""
    (found,) = re.findall(r"(?m)^ENTRYPOINT (.*)$", read_text("Dockerfile"))
    return list(json.loads(found))


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each Kubernetes container of an image of dsort, in ``cluster/`` and on the pages."""
    documents = list(manifests())
    documents += [("helm", each) for each in read_documents(read_text("helm/rendered.yaml"))]
    for page in hand_written():
        documents += [
            (block.title, document)
            for block in blocks(page)
            if block.tag == "yaml"
            for document in read_documents(block.text)
            if isinstance(document, dict) and "apiVersion" in document
        ]
    for place, document in documents:
        for each in walk(document):
            if re.search(r"/dsort(-service)?:", str(each.get("image", ""))):
                yield place, each


def started(container: dict[str, Any]) -> list[str]:
    """The words that a container runs. Kubernetes: ``command`` replaces the ENTRYPOINT, and
    ``args`` replaces the CMD. Empty: the CMD, or what an operator puts there."""
    if "command" in container:
        return [*container["command"], *container.get("args", [])]
    return [*entrypoint(), *container["args"]] if "args" in container else []


PODS = list(pods())


@pytest.mark.parametrize(("place", "container"), PODS, ids=[f"{p}-{c['name']}" for p, c in PODS])
def test_a_container_runs_a_program_of_the_image(place: str, container: dict[str, Any]) -> None:
    words = started(container)
    if words[: len(entrypoint())] == entrypoint():
        words = words[len(entrypoint()) :]

    assert not words or words[0] in PROGRAMS, (place, words)
    if words and words[0] == "dsort":
        parse_command(words)


@pytest.mark.parametrize("name", ["ray", "service"])
def test_a_compose_service_runs_a_program_of_the_image(name: str) -> None:
    services = read_yaml(f"compose/{name}.yaml")["services"].values()
    commands = [shlex.split(each["command"]) for each in services if "dsort" in each["image"]]

    assert commands
    for words in commands:
        assert words[0] in PROGRAMS, words
