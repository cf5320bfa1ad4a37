"""A second try for tests that wait for browsers, servers and processes, which a busy machine may
fail; ``make test`` asks for it (``--second-try``). A test that fails twice fails. One that passes
the second time is reported at the end of the run, with what was wrong the first time.

The second try has fixtures of its own, those of the module and of the session too: what the first
one left in a server would be in its way, and a server may be what died.
"""

from __future__ import annotations

import time

import pytest
from _pytest.runner import runtestprotocol  # as all plugins that run a test again

FOLDERS = ("/jobs/", "/faults/")
"""Of the tests of a room: they start jobs, which a busy machine makes late."""
OUTCOME = "tried again"
FIRST_TRY_S_MAX = 300.0
"""What takes longer hangs, and may do so again: pytest-timeout's clock strikes only once."""

SECOND_TRIES_MAX = 5
"""Of one process. More failures are no accidents, and would take twice the time."""
_tried_again: list[str] = []


def add_option(parser: pytest.Parser) -> None:
    """``--second-try``."""
    parser.addoption(
        "--second-try",
        action="store_true",
        help=f"run what fails in {' and '.join(FOLDERS)} once more",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test that may have a second try, and report it."""
    if not (item.config.option.second_try and any(folder in item.nodeid for folder in FOLDERS)):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    begun_s = time.monotonic()
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failed = [report for report in reports if report.failed]
    in_time = time.monotonic() - begun_s <= FIRST_TRY_S_MAX
    if failed and in_time and len(_tried_again) < SECOND_TRIES_MAX:
        _tried_again.append(item.nodeid)
        for report in failed:
            report.outcome = OUTCOME  # type: ignore[assignment]
        ended = _without_fixtures(item)
        again = [] if ended else runtestprotocol(item, nextitem=nextitem, log=False)
        reports = [*failed, *ended, *again]
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_report_teststatus(
    report: pytest.TestReport | pytest.CollectReport,
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    if report.outcome != OUTCOME:
        return None
    return OUTCOME, "R", ("TRIED AGAIN", {"yellow": True})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was wrong with each first try."""
    for report in terminalreporter.stats.get(OUTCOME, ()):
        terminalreporter.write_sep("_", f"first try of {report.nodeid}", yellow=True)
        report.toterminal(terminalreporter._tw)


def _without_fixtures(item: pytest.Item) -> list[pytest.TestReport]:
    """End the fixtures that live on; the report of an error in that, if there was one."""
    ended = pytest.CallInfo.from_call(
        lambda: item.session._setupstate.teardown_exact(None), when="teardown"
    )
    return [pytest.TestReport.from_item_and_call(item, ended)] if ended.excinfo else []
