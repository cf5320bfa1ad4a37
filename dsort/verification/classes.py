"""What the manifest says of the classes of files in folders, compared with the files."""

from __future__ import annotations

from dsort.job.manifest import Manifest
from dsort.loose_files.bucket import FilesBucket
from dsort.naming.names import first_few, readable
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.verification.findings import Findings

_NAMES = ("utf-8", "surrogateescape")


def classes_to_go_on(manifest: Manifest) -> dict[bytes, int] | None:
    """The number of each class, where the files of a part were numbered by the result that it was
    added to; None where they number themselves."""
    if not (_goes_on(manifest.spec) and manifest.classes):
        return None
    return {name.encode(*_NAMES): number for name, number in manifest.classes.items()}


def check_classes(manifest: Manifest, inputs: Bucket, findings: Findings) -> None:
    """The manifest gives each class the number that its files have."""
    if not manifest.classes or not isinstance(inputs, FilesBucket) or _goes_on(manifest.spec):
        return  # of the latter each record is compared, with the number that the manifest says
    found = {name.decode(*_NAMES): number for name, number in inputs.listing.classes.items()}
    wrong = [name for name, number in found.items() if manifest.classes.get(name) != number]
    if wrong:
        names = first_few([readable(name.encode(*_NAMES)) for name in wrong])
        text = f"the manifest gives classes other numbers than their files have: {names}"
        findings.problem("manifest", "", "", text)


def _goes_on(spec: JobSpec) -> bool:
    return spec.amend is not None and spec.ingest is not None and spec.ingest.class_map is None
