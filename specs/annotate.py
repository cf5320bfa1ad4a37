"""The function that annotate.yaml calls for each record."""

import hashlib


def annotated(sample):
    """The sample with one more member: the sizes and hashes of the others, as JSON."""
    members = {name: data for name, data in sample.items() if name != "__key__"}
    facts = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in members.items()
    }
    return {**members, "meta.json": facts}
