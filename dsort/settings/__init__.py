"""Settings that a user makes once, for all jobs: the data root, and how stores are reached.

In ascending precedence: a store's usual variables (``AWS_ENDPOINT_URL``, ``AIS_ENDPOINT``),
``~/.config/dsort/dsort.toml``, ``dsort.toml`` in the current directory, ``DSORT_*`` variables; a
spec or an option takes precedence over all of them. Of the tables of stores the most specific one
that has a field wins: ``[stores."s3://bucket/prefix"]`` before ``[stores.s3]`` and before the
variables, which are equivalent to the latter. Credentials are in none of these places.
"""

from __future__ import annotations

from dsort.settings.sources import load_settings
from dsort.settings.values import Settings, StoreSettings, resolve_ref

__all__ = ["Settings", "StoreSettings", "load_settings", "resolve_ref"]
