"""The recipes for schedulers: the files parse, dsort accepts their commands and specs, and each
night has an order of its own."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from datetime import UTC, datetime

import pytest
import yaml

import dsort
from tests.support.cluster_files import parse_command
from tests.support.commands import ROOT
from tests.support.doc_pages import blocks
from tests.support.published_models import check_kubernetes

FILES = {each.title: each.text for each in blocks(ROOT / "docs" / "recipes.md")}


def test_the_cron_job_has_the_fields_of_kubernetes_and_mounts_its_volumes() -> None:
    """The words that it runs: ``tests/project/unit/test_cluster_image.py``."""
    job = yaml.safe_load(FILES["nightly-cronjob.yaml"])
    check_kubernetes(job)
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert {each["name"] for each in container["volumeMounts"]} == {
        each["name"] for each in pod["volumes"]
    }


def test_the_cron_job_shuffles_by_the_date() -> None:
    job = yaml.safe_load(FILES["nightly-cronjob.yaml"])
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    shell, option, script = container["args"]
    printed = subprocess.run(
        [shell, option, script.replace("exec", "echo")], capture_output=True, text=True, check=True
    )
    words = shlex.split(printed.stdout)
    parse_command(words)

    assert words[:2] == ["dsort", "shuffle"]
    assert re.fullmatch(r"20\d{6}", words[words.index("--seed") + 1])


@pytest.mark.parametrize("title", [title for title in FILES if title.endswith(".py")])
def test_no_recipe_writes_the_same_order_each_night(title: str) -> None:
    (call,) = [
        node
        for node in ast.walk(ast.parse(FILES[title]))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "shuffle"
    ]
    (seed,) = [each.value for each in call.keywords if each.arg == "seed"]

    assert not isinstance(seed, ast.Constant)


def test_the_builders_of_the_recipes_are_specs() -> None:
    titles = [title for title in FILES if title.endswith(".py")]
    assert len(titles) == 2
    for title in titles:
        calls = [
            node
            for node in ast.walk(ast.parse(FILES[title]))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "write"
        ]
        (call,) = calls
        built = eval(
            ast.unparse(call),
            {"dsort": dsort, "dsort_client": dsort, "ds": "2026-01-31"}
            | {"datetime": datetime, "UTC": UTC},
        )
        spec = built.spec()
        assert spec.output_bck.uri == "s3://data/shuffled"
        assert re.search(r"train-\{n:06d\}", spec.output_format or "")
