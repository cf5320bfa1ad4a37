"""Settings that a user makes once, for all jobs: the data root, and how stores are reached.

In ascending precedence: a store's usual variables (``AWS_ENDPOINT_URL``), the ``dsort.toml`` of the
user, that of the current directory, ``DSORT_*`` variables; a spec or an option wins over all. Of
the tables of stores the most specific one with the field wins. Credentials are in none of them.
"""

from __future__ import annotations

from dsort.settings.sources import load_settings
from dsort.settings.values import Settings, StoreSettings, resolve_ref

__all__ = ["Settings", "StoreSettings", "load_settings", "resolve_ref"]
