"""Settings that a user makes once, for all jobs: the data root, and how stores are reached.

In ascending precedence: a store's usual variables (``AWS_ENDPOINT_URL``), the ``dsort.toml`` of the
user, then of the current directory, ``DSORT_*`` variables, a spec or an option. Among the tables of
stores, the most specific one that has the field wins. No settings contain credentials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsort.settings.sources import load_settings
from dsort.settings.values import Settings, StoreSettings, resolve_ref

if TYPE_CHECKING:
    from dsort.spec.transform import NamedTransform

__all__ = ["Settings", "StoreSettings", "find_transform", "load_settings", "resolve_ref"]


def find_transform(name: str, version: int | None = None) -> NamedTransform:
    """The transform that this user calls ``name``: see ``LocalTransforms.find``."""
    from dsort.settings.named_transforms import local_transforms  # loads the models of all steps

    return local_transforms().find(name, version)
