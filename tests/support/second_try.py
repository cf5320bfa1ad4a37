"""A second try for tests that wait for browsers, servers and processes, and may fail on a busy
machine; ``make test`` turns it on (``--second-try``). A test that fails twice fails. A test that
passes the second time is reported at the end of the run, with the error of its first try.

The second try has new fixtures, also of the module and of the session: data of the first try in a
server could make the second one fail, and the server itself may have died.
"""

from __future__ import annotations

import time

import pytest
from _pytest.runner import runtestprotocol  # as all plugins that run a test again

FOLDERS = ("/jobs/", "/faults/")
"""The folders of a room whose tests have a second try: they start jobs, which are late on a busy
machine."""
OUTCOME = "tried again"
FIRST_TRY_S_MAX = 300.0
"""A first try that takes longer hangs, and the second try might hang, too: pytest-timeout ends only
the first."""

SECOND_TRIES_MAX = 5
"""The number of second tries in one process. More failures have another cause than a busy machine,
and second tries would double their time."""
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
    """Write the error of each first try."""
    for report in terminalreporter.stats.get(OUTCOME, ()):
        terminalreporter.write_sep("_", f"first try of {report.nodeid}", yellow=True)
        report.toterminal(terminalreporter._tw)


def _without_fixtures(item: pytest.Item) -> list[pytest.TestReport]:
    """End the fixtures that still live. Returns the report of an error of their end, if there was
    one."""
    ended = pytest.CallInfo.from_call(
        lambda: item.session._setupstate.teardown_exact(None), when="teardown"
    )
    return [pytest.TestReport.from_item_and_call(item, ended)] if ended.excinfo else []
