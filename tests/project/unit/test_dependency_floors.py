"""Lower bounds of dependencies exclude versions with published vulnerabilities, and the locks keep
to the bounds."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.cluster_files import locked_versions, project, read_text

LAST_AFFECTED = {
    "CVE-2025-43859": ("h11", "0.14.0"),
    "CVE-2025-61385": ("pg8000", "1.31.4"),
    "CVE-2025-62727": ("starlette", "0.49.0"),
    "CVE-2025-67221": ("orjson", "3.11.5"),
    "CVE-2026-25087": ("pyarrow", "23.0.0"),
    "CVE-2026-41486": ("ray", "2.54.1"),
    "CVE-2026-44431": ("urllib3", "2.6.3"),
    "CVE-2026-44432": ("urllib3", "2.6.3"),
    "CVE-2026-48710": ("starlette", "1.0.0"),
    "CVE-2026-55798": ("pillow", "12.2.0"),
    "CVE-2026-57516": ("ray", "2.55.1"),
    "CVE-2026-59197": ("pillow", "12.2.0"),
    "CVE-2026-59198": ("pillow", "12.2.0"),
    "CVE-2026-59199": ("pillow", "12.2.0"),
    "CVE-2026-59200": ("pillow", "12.2.0"),
    "CVE-2026-63374": ("anyio", "4.14.1"),
    "CVE-2026-64847": ("anyio", "4.14.1"),
    "CVE-2026-97688": ("urllib3", "2.7.0"),
    "PYSEC-2026-248": ("starlette", "1.2.1"),
    "PYSEC-2026-249": ("starlette", "1.3.0"),
}
"""By advisory: the package, and its last version that has the vulnerability."""

PROJECTS = ("../pyproject.toml", "../packages/dsort-client/pyproject.toml")
LOCKS = ("../requirements-dev.lock", "requirements.lock")


def requirements(name: str = PROJECTS[0]) -> Iterator[Requirement]:
    found = tomllib.loads(read_text(name))["project"]
    lines = [*found["dependencies"]]
    for extra in found.get("optional-dependencies", {}).values():
        lines += extra
    return map(Requirement, lines)


@pytest.mark.parametrize("name", PROJECTS)
def test_no_bound_allows_a_version_with_a_known_vulnerability(name: str) -> None:
    bounds = list(requirements(name))
    assert {"anyio", "h11"} <= {each.name for each in bounds}
    for advisory, (package, version) in LAST_AFFECTED.items():
        wrong = [each for each in bounds if each.name == package and version in each.specifier]
        assert not wrong, (advisory, wrong)


def test_each_advisory_is_named_at_the_bound_that_answers_it() -> None:
    lines = read_text(PROJECTS[0]).splitlines()
    said = {
        advisory: match[1]
        for line in lines
        if (match := re.match(r'    "([a-z0-9-]+)>=[^"]*", # ', line))
        for advisory in re.findall(r"(?:CVE|PYSEC)-\d+-\d+", line)
    }
    assert said == {advisory: package for advisory, (package, _) in LAST_AFFECTED.items()}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_keeps_to_the_bounds(lock: str) -> None:
    locked = locked_versions(lock)
    checked = 0
    for requirement in requirements():
        for version in locked.get(canonicalize_name(requirement.name), set()):
            assert version in requirement.specifier, (requirement, version)
            checked += 1
    assert checked > len(project()["project"]["dependencies"])
