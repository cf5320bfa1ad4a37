"""Checks whether things that a job depended on have changed: its inputs, the classes of files in
folders, and the code of steps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dsort.errors import ObjectNotFoundError
from dsort.loose_files.bucket import FilesBucket
from dsort.naming.names import first_few, readable
from dsort.results.manifest import Manifest
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.transforms.base import Step
from dsort.transforms.payload import PayloadStep
from dsort.verification.findings import Findings

_NAMES = ("utf-8", "surrogateescape")
_NOT_COMPARED = "the records of the result were not compared with those of the inputs"
_PARTS = (("source_sha256", "source"), ("packages", "versions of packages"))


def inputs_are_comparable(
    manifest: Manifest, inputs: Bucket, findings: Findings, *, has_removed: bool, needs_code: bool
) -> bool:
    """Whether records can be compared with the inputs; warns of inputs that have changed.
    ``has_removed``: records were removed from the result; ``needs_code``: steps ran code, and this
    verification does not run it."""
    if manifest.spec.reads_streams:
        text = f"the job read a stream, or what programs wrote, which is gone: {_NOT_COMPARED}"
        findings.warn("changed_inputs", text)
        return False
    if manifest.spec.equalize is not None and has_removed:
        text = (
            "records were removed from shards that equalize had made equal: the records that "
            "stayed were not compared with those of the inputs"
        )
        findings.warn("removed_of_equal", text)
        return False
    if needs_code:
        # Code that the manifest names is not trusted: anyone with write access to the bucket may
        # have put it there.
        text = (
            f"steps of the job ran code, which is not run again: {_NOT_COMPARED} (--run-code runs "
            "the code)"
        )
        findings.warn("not_run_again", text)
        return False
    gone, resized, touched = [], [], []
    for shard in manifest.inputs:
        try:
            info = inputs.stat(shard.name)
        except ObjectNotFoundError:
            gone.append(shard.name)
            continue
        if info.size_bytes != shard.bytes:
            resized.append(shard.name)
        elif not info.is_still(shard.bytes, shard.etag, any_ctime=True):
            touched.append(shard.name)
    total = len(manifest.inputs)
    resized_text = "have another size than at the time of the job"
    for names, change in ((gone, "are gone"), (resized, resized_text)):
        if names:
            count = f"{len(names):,} of {total:,} input shards"
            text = f"{count} {change} ({first_few(names)}): {_NOT_COMPARED}"
            findings.warn("changed_inputs", text)
    if touched and not (gone or resized):
        text = (
            f"{len(touched):,} of {total:,} input shards were written or moved since the job "
            f"({first_few(touched)}): differences may come from the inputs, not from the result"
        )
        findings.warn("changed_inputs", text)
    return not gone and not resized


def classes_to_go_on(manifest: Manifest) -> dict[bytes, int] | None:
    """The number of each class, if the job added its shards to a result with numbered classes; None
    if the files of the job decide the numbers."""
    if not (_goes_on(manifest.spec) and manifest.classes):
        return None
    return {name.encode(*_NAMES): number for name, number in manifest.classes.items()}


def check_classes(manifest: Manifest, inputs: Bucket, findings: Findings) -> None:
    """Check that the manifest gives each class the number that its files have."""
    if not manifest.classes or not isinstance(inputs, FilesBucket) or _goes_on(manifest.spec):
        return  # of shards added to a result, the records are compared with these numbers anyway
    found = {name.decode(*_NAMES): number for name, number in inputs.listing.classes.items()}
    wrong = [name for name, number in found.items() if manifest.classes.get(name) != number]
    if wrong:
        names = first_few([readable(name.encode(*_NAMES)) for name in wrong])
        text = f"the manifest gives classes other numbers than their files have: {names}"
        findings.problem("manifest", "", "", text)


def _goes_on(spec: JobSpec) -> bool:
    return spec.amend is not None and spec.ingest is not None and spec.ingest.class_map is None


def tell_changed_code(
    steps: Sequence[Step], known: Sequence[Mapping[str, Any]], findings: Findings
) -> None:
    """Warn of ``steps`` whose code differs from that in the manifest (``known``)."""
    before = {each.get("step"): each for each in known}
    for number, step in enumerate(steps):
        if not isinstance(step, PayloadStep) or number not in before:
            continue
        then, now = before[number], json.loads(step.known)
        changed = [words for name, words in _PARTS if then.get(name) != now.get(name)]
        if changed:
            findings.warn(
                "changed_code",
                f"transform.steps[{number}].{step.kind} has another {' and '.join(changed)} than "
                "at the time of the job: differences may come from this change",
            )
