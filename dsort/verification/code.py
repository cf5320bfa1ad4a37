"""Steps that run code, run again: is that code what it was?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dsort.transforms.base import Step
from dsort.transforms.payload import PayloadStep
from dsort.verification.findings import Findings

_PARTS = (("source_sha256", "source"), ("packages", "versions of packages"))


def tell_changed_code(
    steps: Sequence[Step], known: Sequence[Mapping[str, Any]], findings: Findings
) -> None:
    """Warn of ``steps`` whose code is not what the manifest (``known``) says it was."""
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
