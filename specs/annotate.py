"""What annotate.yaml has made of each record."""

import hashlib


def annotated(sample):
    """The sample, and what there is to say of its members."""
    members = {name: data for name, data in sample.items() if name != "__key__"}
    facts = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in members.items()
    }
    return {**members, "meta.json": facts}
