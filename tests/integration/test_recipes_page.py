"""The recipes for schedulers: the files parse, and what they say to dsort is right."""

from __future__ import annotations

import ast
import re
from typing import Any

import typer
import yaml

import dsort
from dsort.cli.main import whole_app
from tests.support.commands import ROOT
from tests.support.doc_pages import blocks

FILES = {each.title: each.text for each in blocks(ROOT / "docs" / "recipes.md")}


def test_the_cron_job_is_one_whose_arguments_the_command_line_takes() -> None:
    from lightkube.models.batch_v1 import CronJobSpec

    job = yaml.safe_load(FILES["nightly-cronjob.yaml"])
    spec = CronJobSpec.from_dict(job["spec"])
    (container,) = spec.jobTemplate.spec.template.spec.containers
    verb, *arguments = container.args
    command: Any = typer.main.get_command(whole_app())
    context = command.commands[verb].make_context("dsort start", arguments)
    assert context.params["progress"] == "plain"
    assert {each.name for each in container.volumeMounts} == {"spec", "scratch"}


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
        built = eval(ast.unparse(call), {"dsort": dsort, "ds": "2026-01-31"})
        spec = built.spec()
        assert spec.output_bck.uri == "s3://data/shuffled"
        assert re.search(r"train-\{n:06d\}", spec.output_format or "")
