"""What a user sets once, for all jobs: where the data root is, and how stores are reached.

From least to most: a store's usual variables (``AWS_ENDPOINT_URL``, ``AIS_ENDPOINT``),
``~/.config/dsort/dsort.toml``, ``dsort.toml`` in the current directory, ``DSORT_*`` variables; what
a spec or an option says itself comes before all of them. Of the tables of stores the most specific
one that has a field wins: ``[stores."s3://bucket/prefix"]`` before ``[stores.s3]`` and before the
variables, which say the same as the latter. Credentials are in none of these places.
"""

from __future__ import annotations

from dsort.settings.sources import load_settings
from dsort.settings.values import Settings, StoreSettings, resolve_ref

__all__ = ["Settings", "StoreSettings", "load_settings", "resolve_ref"]
