"""Rules about outputs whose records are converted as they are written: outputs with a container of
their own, and those of a join into a container that is not a list of members."""

from __future__ import annotations

from collections.abc import Iterator

from dsort.containers.registry import codec_of, container_of
from dsort.errors import SpecProblem
from dsort.sidecars.kinds import SHARD_KINDS
from dsort.spec.algorithms import joined
from dsort.spec.carriers import late_targets
from dsort.spec.checks import Rules
from dsort.spec.parts import SpecFields
from dsort.spec.target import Target

__all__ = ["rule"]

rule = Rules()


def _why(spec: SpecFields) -> str:
    """The reason why a job converts late, in words that follow "cannot be combined with"."""
    own = [each.extension for each in late_targets(spec)]
    if spec.join is not None:
        return f"join into {joined([*dict.fromkeys(own)])}"
    return "outputs of several containers"


def _path(target: Target, spec: SpecFields, name: str) -> str:
    """The path of the field ``name`` of an output: its own field, or that of the top level."""
    number = int(target.path[len("outputs[") :].partition("]")[0]) if target.path else -1
    is_own = number >= 0 and getattr(spec.outputs[number], name) is not None
    return f"{target.path}{name}" if is_own else name


@rule
def _late_outputs_can_be_made(spec: SpecFields) -> Iterator[SpecProblem]:
    for target in late_targets(spec):
        container = container_of(target.extension)
        if container.packing is None and not container.is_columnar:
            text = f"{target.extension} shards are made of no other container's"
            yield SpecProblem(_path(target, spec, "output_extension"), text)
        if spec.amend is not None and container.index is not None:
            text = (
                f"cannot be combined with {_why(spec)}: "
                f"the index of {target.extension} shards is of one"
            )
            yield SpecProblem("amend", text, "run the job again, over all inputs")
        if codec_of(target.extension) is None:
            continue
        if container.is_columnar or container.index is not None:
            text = f"{target.extension} cannot be combined with {_why(spec)}"
            hint = f"use {container.suffixes[0]}, or write it in a job of its own"
            yield SpecProblem(_path(target, spec, "output_extension"), text, hint)


@rule
def _late_outputs_are_measured_by_payload(spec: SpecFields) -> Iterator[SpecProblem]:
    for target in late_targets(spec):
        if target.counts_file:
            text = (
                f"file cannot be combined with {_why(spec)}: "
                f"how long {target.extension} shards get is "
                "known once they are written"
            )
            path = _path(target, spec, "output_shard_size_counts")
            yield SpecProblem(path, text, "use payload")


@rule
def _what_conversions_change_is_counted(spec: SpecFields) -> Iterator[SpecProblem]:
    if not late_targets(spec):
        return
    given = {
        "strip_final_newline": spec.strip_final_newline,
        "member_defaults": bool(spec.member_defaults),
    }
    for name in (name for name, is_given in given.items() if is_given):
        text = f"cannot be combined with {_why(spec)}"
        yield SpecProblem(name, text, "convert in a job of its own, which counts what it changes")
    kinds = [kind for kind in spec.index if kind in SHARD_KINDS]
    if kinds:
        text = f"{joined(kinds)} cannot be combined with {_why(spec)}"
        yield SpecProblem("index", text, "write shards of one container, or leave it out")
