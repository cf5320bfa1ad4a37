"""Lets the asserts of suites that are imported, not collected, explain themselves."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.contract.bucket_suite", "tests.contract.runtime_suite")
