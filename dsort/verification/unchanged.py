"""Checks whether things that a job depended on have changed: the classes of files in folders, and
the code of steps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dsort.job.manifest import Manifest
from dsort.loose_files.bucket import FilesBucket
from dsort.naming.names import first_few, readable
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.transforms.base import Step
from dsort.transforms.payload import PayloadStep
from dsort.verification.findings import Findings

_NAMES = ("utf-8", "surrogateescape")
_PARTS = (("source_sha256", "source"), ("packages", "versions of packages"))


def classes_to_go_on(manifest: Manifest) -> dict[bytes, int] | None:
    """The number of each class, where the result that a part was added to set these numbers; None
    where they follow from the files of the part."""
    if not (_goes_on(manifest.spec) and manifest.classes):
        return None
    return {name.encode(*_NAMES): number for name, number in manifest.classes.items()}


def check_classes(manifest: Manifest, inputs: Bucket, findings: Findings) -> None:
    """Check that the manifest gives each class the number that its files have."""
    if not manifest.classes or not isinstance(inputs, FilesBucket) or _goes_on(manifest.spec):
        return  # in the last case, records are compared with the numbers of the manifest anyway
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
                "at the time of the job: differences may come of that",
            )
