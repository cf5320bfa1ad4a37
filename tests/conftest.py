"""What all tests share: seeds that are printed and can be given again, and the command line."""

from __future__ import annotations

import functools
import gc
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from dsort.cli.main import main
from tests.support import armed, sampling, second_try
from tests.support.commands import ROOT, CommandLine, Ended
from tests.support.disks import temporary_root, wait_for_no_disk

if TYPE_CHECKING:
    from tests.support.coordinators import Coordinators
    from tests.support.hub_server import Hub
    from tests.support.postgres import PostgresServer
    from tests.support.seaweedfs import S3Server
    from tests.support.surviving import Trial

SEED_VARIABLE = "DSORT_TEST_SEED"
USUAL_SEED = 20260201
"""A run that has to pass draws no lots. ``--all`` draws another seed each time."""
DISK_VARIABLE = "TESTS_DISK"
"""Where tests marked ``disk`` have their files."""
LEFT_OUT = pytest.StashKey[int]()
PROCESSES_MAX = 8
PREFIXES = ("DSORT_", "AWS_", "AIS_")
COLOURS = ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "PY_COLORS")
SHARED_CLUSTER = "cluster"
"""The fixture of tests that have a Ray cluster in common."""

# The asserts of suites that are imported, not collected, explain themselves.
pytest.register_assert_rewrite("tests.support.bucket_suite", "tests.support.runtime_suite")

for profile, examples in (("sampled", 6), ("all", sampling.EXAMPLES_OF_ALL)):
    hypothesis.settings.register_profile(
        profile,
        max_examples=examples,
        derandomize=False,
        print_blob=True,
        deadline=None,
        database=None,  # what failed in another run has its test, or its seed
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """One seed for everything random, how many examples hypothesis tries, and that Python keeps
    what it compiles."""
    gc.disable()  # until all tests are collected
    wait_for_no_disk()
    _do_without_settings()
    # Tests start more than a thousand Python processes, which would each compile dsort for half
    # of the time that they take.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background has it so
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if not os.environ.get(SEED_VARIABLE):
        fresh = random.SystemRandom().randrange(2**32)
        # All processes of pytest-xdist collect the same tests.
        os.environ[SEED_VARIABLE] = str(fresh if config.option.all else USUAL_SEED)
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(seed())
    hypothesis.settings.load_profile("all" if config.option.all else "sampled")
    config.pluginmanager.register(second_try)
    if not hasattr(config, "workerinput"):  # processes of pytest-xdist have what we set
        _keep_temporary_files(config)


def _do_without_settings() -> None:
    """Settings of the user who runs the tests are not for them: colours of continuous integration,
    profiles of a cloud, proxies on the way to servers of this machine. (Debian's packages come
    through a proxy, if there is one.)"""
    for name in [*os.environ]:
        if (name.startswith(PREFIXES) and name != SEED_VARIABLE) or name in COLOURS:
            del os.environ[name]
    os.environ["TERM"] = "xterm"  # a dumb one has no bars
    here = ("127.0.0.1", "localhost", "::1")
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join([*filter(None, [os.environ.get(name)]), *here])


def _keep_temporary_files(config: pytest.Config) -> None:
    """Whatever tests and the libraries that they load leave in the directory of temporary files
    goes with the run; but for ``tmp_path``, of which pytest keeps three runs. The path is short,
    for the sockets that some put there."""
    os.environ[DISK_VARIABLE] = tempfile.gettempdir()
    root = tempfile.gettempdir() if "TMPDIR" in os.environ else temporary_root()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", root)
    directory = tempfile.mkdtemp(prefix="dst-", dir=root)
    Path(directory).chmod(0o711)  # PostgreSQL is not run as root
    tempfile.tempdir = os.environ["TMPDIR"] = directory
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--all``: what ``make test`` leaves out as well; ``--second-try``."""
    parser.addoption("--all", action="store_true", help="run all cases of tests that are sampled")
    second_try.add_option(parser)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each process of pytest-xdist does what belongs together, in the order of all tests. (The
    groups of ``--dist loadgroup`` have no effect since pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return sampling.group_of(nodeid, config.rootpath)

    config.option.loadscopereorder = False  # the slowest stay first
    return Groups(config, log)


@pytest.hookimpl(trylast=True)  # what -k and -m leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests that run, the same in each process of pytest-xdist, and put the slowest
    first."""
    if not (config.option.all or sampling.is_named(config.args)):
        out = {id(item) for item in sampling.left_out(items)}
        config.hook.pytest_deselected(items=[item for item in items if id(item) in out])
        items[:] = [item for item in items if id(item) not in out]
        config.stash[LEFT_OUT] = len(out)
    items.sort(key=sampling.rank)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """A Ray cluster lasts over files of tests that have it in common, and no longer: others count
    the processes that there are."""
    yield
    if SHARED_CLUSTER in _fixtures_of(item) and SHARED_CLUSTER not in _fixtures_of(nextitem):
        from tests.support.ray_cluster import end_shared_cluster

        end_shared_cluster()


def _fixtures_of(item: pytest.Item | None) -> list[str]:
    return getattr(item, "fixturenames", [])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist tells the one that began it how many tests were left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """All of them tell the same."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left out", 0)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: tests wait a lot, for processes that begin and leases that end. (Two processes
    more than processors: with three more, two quiet processors took longer.)"""
    return min(len(os.sched_getaffinity(0)) + 2, PROCESSES_MAX)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """How many tests are left to ``make test-all``."""
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{count} cases were left out; --all (make test-all) runs them")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test all of whose assertions hold fails if a fault that it armed has not struck."""
    try:
        yield
    finally:
        missed = armed.missed()
    assert not missed, f"these faults have not struck: {missed}"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests, and all that they import, are not looked through for garbage again and
    again; what tests make is looked through less often, which saves 6 % of the processor."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


def pytest_report_header(config: pytest.Config) -> str:
    return (
        f"seeds: {SEED_VARIABLE}={seed()}, --hypothesis-seed={config.option.hypothesis_seed} "
        "(give them again to repeat this run)"
    )


@functools.cache  # first asked before a test could take the variable away
def seed() -> int:
    """Of everything random in this run."""
    return int(os.environ[SEED_VARIABLE])


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A test's own directory: in memory where there is plenty, unless the test is marked
    ``disk``."""
    if request.node.get_closest_marker("disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="dst-", dir=os.environ[DISK_VARIABLE]) as directory:
        yield Path(directory)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers of a test's own, from the seed in the header of the run."""
    return random.Random(f"{seed()}/{request.node.nodeid}")


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """How often a test does something that it cannot do too often: the first number, or with
    ``--all`` the second."""
    return lambda usually, at_most: at_most if request.config.option.all else usually


def is_setting(variable: str) -> bool:
    """Whether this is a setting of the user who runs the tests, which they do without."""
    return variable.startswith(("DSORT_", "AWS_ENDPOINT_URL", "AIS_ENDPOINT", "HF_ENDPOINT"))


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server for the whole run, started when a test first wants it."""
    from tests.support.seaweedfs import seaweedfs  # boto3 takes a while to load

    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="module")
def hub_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A stand-in for the Hugging Face Hub."""
    from tests.support.hub_server import hub_server

    with hub_server(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture
def hub(hub_process: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The stand-in, behaving, with the environment that lets this process and its children in."""
    hub_process.misbehave()
    hub_process.forget_requests()
    for name, value in hub_process.environment().items():
        monkeypatch.setenv(name, value)
    return hub_process


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The S3 server, with the environment that lets this process and its children in."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL for the whole run, started when a test first wants it; a test asks it for a
    ``fresh_database()`` of its own."""
    from tests.support.debian import CannotInstall, skip_outside_ci
    from tests.support.postgres import postgres_server, programs

    try:
        binaries = programs()
    except CannotInstall as none:
        skip_outside_ci(f"there is no PostgreSQL: {none.reason}")
    with postgres_server(binaries) as server:
        yield server


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with nothing in it: of SQLite, unless a test is for both kinds that the
    service knows (``tests/support/databases.py``)."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path}/service.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.cleared_database()


@pytest.fixture(scope="session", autouse=True)
def _forked_workers() -> Iterator[None]:
    """Worker processes of jobs of this process (``tests/support/forked_workers.py``)."""
    from tests.support.forked_workers import forked_workers

    with forked_workers():
        yield


@pytest.fixture(scope="session", autouse=True)
def _forked() -> Iterator[None]:
    """In the end, no process is left that others are forks of (``tests/support/forked.py``)."""
    yield
    from tests.support.forked import end_nurseries

    end_nurseries()


@pytest.fixture(scope="session")
def begun() -> Iterator[Coordinators]:
    """Begins coordinators that may die."""
    from tests.support.coordinators import coordinators

    with coordinators() as begun:
        yield begun


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the results of undisturbed jobs are."""
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture
def trial(
    tmp_path: Path, begun: Coordinators, base: Path, monkeypatch: pytest.MonkeyPatch
) -> Trial:
    """A job of the test's own directory, whose coordinators may die."""
    from tests.support.surviving import Trial

    return Trial(tmp_path, begun, base, monkeypatch)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A directory with little room: a file system of its own."""
    from tests.support.small_places import small_disk

    with small_disk(tmp_path / "small") as directory:
        yield directory


@pytest.fixture
def workers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local jobs of this process have no worker processes (``tests/support/workers_here.py``)."""
    from tests.support.workers_here import WorkersHere

    monkeypatch.setattr("dsort.opened_job.LocalRuntime", WorkersHere)


@pytest.fixture
def worker_processes(workers_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local jobs have worker processes after all, in a file that does without them elsewhere."""
    from tests.support.internals import LocalRuntime

    monkeypatch.setattr("dsort.opened_job.LocalRuntime", LocalRuntime)


@pytest.fixture
def cli(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """Run a command line in this process, in the test's own directory. An exception that is no
    error of dsort comes out of it."""
    monkeypatch.chdir(tmp_path)
    for name in [each for each in os.environ if is_setting(each)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".unset"))

    def run(*args: str | Path) -> Ended:
        capfd.readouterr()
        code = main([str(arg) for arg in args])
        out, err = capfd.readouterr()
        return Ended(code, out, err)

    return run


@pytest.fixture
def command(tmp_path: Path) -> CommandLine:
    """Run a command line in a process of its own, in the test's own directory."""
    from tests.support.forked_commands import run_dsort

    def run(*args: str | Path, env: dict[str, str] | None = None, stdin: str = "") -> Ended:
        surroundings = {k: v for k, v in os.environ.items() if not is_setting(k)}
        surroundings["XDG_CONFIG_HOME"] = str(tmp_path / ".unset")
        surroundings |= {"PYTHONPATH": str(ROOT), "COLUMNS": "80"} | (env or {})
        return run_dsort([*map(str, args)], cwd=tmp_path, env=surroundings, stdin=stdin)

    return run
