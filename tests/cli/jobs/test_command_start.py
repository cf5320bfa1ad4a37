"""What a command loads and starts, no more than its job needs; workers that are forks of it; how it
ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import left_in, spec_of

DATASET = small_dataset("started")
SPEC = spec_of(algorithm={"kind": "shuffle", "seed": 1})
NO_INTERPRETER = "dsort.runtime.local.BOOTSTRAP = 'raise SystemExit(3)'"


def run_script(root: Path, *statements: str, **fields: str) -> subprocess.CompletedProcess[str]:
    """Run ``statements`` in a process of its own, beside a bucket ``in``."""
    write_shards(root / "in", DATASET)
    script = "\n".join(["import sys", "import dsort.runtime.local", *statements])
    return subprocess.run(
        [sys.executable, "-c", script, "start", "-f", json.dumps(SPEC | fields), "--workers", "2"],
        cwd=root,
        env={"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},  # NumPy is loaded before `main`
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("extension", [".tar", ".parquet"])
def test_workers_of_a_command_are_forks_of_it(extension: str, tmp_path: Path) -> None:
    command = ("from dsort.cli.main import main", "sys.exit(main())")
    ended = run_script(tmp_path, NO_INTERPRETER, *command, output_extension=extension)
    assert ended.returncode == 0, ended.stderr
    assert len([*(tmp_path / "out").glob(f"*{extension}")]) == 8


A_THREAD = (
    "import os, threading",
    "read_end, write_end = os.pipe()",
    "threading.Thread(target=os.read, args=(read_end, 1), daemon=True).start()",
)


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    ("before", "ask"),
    [(A_THREAD, "sys.exit(main())"), ((), "sys.exit(main(sys.argv[1:]))")],
    ids=["beside a thread", "in the process of another program"],
)
def test_nothing_is_forked(before: tuple[str, ...], ask: str, tmp_path: Path) -> None:
    ended = run_script(tmp_path, NO_INTERPRETER, "from dsort.cli.main import main", *before, ask)
    assert ended.returncode == 5, ended.stderr
    assert "workers were lost" in ended.stderr


def test_forks_that_die_are_replaced(tmp_path: Path) -> None:
    ended = run_script(
        tmp_path,
        "import json, os, psutil",
        "from pathlib import Path",
        "import dsort",
        "from dsort.results.report import PhaseDone",
        "def kill_all(event):",
        "    if isinstance(event, PhaseDone) and event.phase == 'extract':",
        "        for worker in psutil.Process().children():",
        "            worker.kill()",
        "            os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)",
        "            print(worker.pid)",
        "options = dsort.RunOptions(root=Path.cwd(), workers=2, forks=True)",
        "dsort.run(json.loads(sys.argv[3]), options=options, on_event=kill_all)",
        "assert psutil.Process().children() == []",
    )
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.split()) == 2
    assert left_in(tmp_path / "out") == [".dsort/JOB/manifest.json", *files_of(tmp_path / "out")]


def test_a_job_over_files_loads_what_it_needs(tmp_path: Path) -> None:
    unwanted = (
        *("boto3", "botocore", "fastapi", "obstore", "pyarrow", "ray", "rich", "yaml"),
        *("email", "http.client", "importlib.metadata", "numpy.ma", "sqlite3", "ssl"),
        *("encodings.ascii", "isal", "lzma", "multiprocessing", "subprocess", "tempfile"),
        *("dsort.cli.serve", "dsort.containers.columnar", "dsort.containers.zip"),
        *("dsort.results.hooks", "dsort.keymap.fetch", "dsort.verification"),
        *("dsort.spec.outputs", "dsort.spec.transform", "dsort.transforms.payload"),
    )
    ended = run_script(
        tmp_path,
        "from dsort.cli.main import main",
        "assert main() == 0",
        f"print([name for name in {unwanted} if name in sys.modules], file=sys.stderr)",
        "from dsort.spec.algorithms import Part",
        "parts = Part.__subclasses__()",
        "for part in parts: parts += part.__subclasses__()",
        "built = {part.__name__ for part in parts if part.__pydantic_complete__}",
        "print(sorted(built), file=sys.stderr)",
    )
    assert ended.returncode == 0, ended.stderr
    loaded, built = ended.stderr.splitlines()[-2:]
    assert loaded == "[]"
    assert built == "['Algorithm', 'InputFormat', 'JobSpec']"


def test_workers_that_spill_do_without_masked_arrays(tmp_path: Path) -> None:
    ended = run_script(
        tmp_path,
        "sys.modules['numpy.ma'] = None",  # also of those that are forked
        "sys.argv += ['--move', 'spill']",
        "from dsort.cli.main import main",
        "sys.exit(main())",
    )
    assert ended.returncode == 0, ended.stderr


def test_models_of_others_get_their_plugins(tmp_path: Path) -> None:
    ended = run_script(
        tmp_path,
        "import os",
        "from dsort.cli.process import own_process, without_plugins",
        "own_process()",
        "with without_plugins():",
        "    from pydantic import TypeAdapter",
        "    TypeAdapter(int)",
        "    before = 'importlib.metadata' in sys.modules",
        "TypeAdapter(str)",
        "from pydantic.plugin._loader import get_plugins",
        "print(before, get_plugins.__module__, os.environ.get('PYDANTIC_DISABLE_PLUGINS'))",
    )
    assert (ended.stdout, ended.stderr) == ("False pydantic.plugin._loader None\n", "")


AT_ITS_END = (
    "import atexit, tempfile, threading",
    "kept = tempfile.TemporaryDirectory(dir='.')",
    "atexit.register(print, 'at the end')",
    "sys.argv = ['dsort', '--version']",
    "from dsort.__main__ import main",
)
IDLE = ("go_on = threading.Event()", "threading.Thread(target=go_on.wait, daemon=DAEMON).start()")
POOL = (
    "from concurrent.futures import ThreadPoolExecutor",
    "pool, ends = ThreadPoolExecutor(1, thread_name_prefix='dsort-upload'), threading.Event()",
    "threading._register_atexit(ends.set)",  # before pools are waited for, and not earlier
    "pool.submit(lambda: (ends.wait(), print('uploaded')))",
)
STUCK = (
    *POOL[:-1],
    "import os, signal",
    "def stick():",
    "    ends.wait()",
    "    print('uploading')",
    # A signal right before the main thread begins to wait is heard behind that wait: press again.
    "    while True:",
    "        os.kill(os.getpid(), signal.SIGINT)",
    "        threading.Event().wait(5)",
    "pool.submit(stick)",
)


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize(
    ("before", "comes_back"),
    [
        ((), False),
        (tuple(each.replace("DAEMON", "True") for each in IDLE), False),
        (tuple(each.replace("DAEMON", "False") for each in IDLE), True),
        (("sys.setprofile(lambda *what: None)",), True),
    ],
    ids=["alone", "beside a daemon", "beside a thread", "profiled"],
)
def test_a_process_ends_with_its_command_unless_others_use_it(
    before: tuple[str, ...], comes_back: bool, tmp_path: Path
) -> None:
    after = ("code = main()", "print('came back', code)", "go_on.set() if 'go_on' in dir() else 0")
    ended = run_script(tmp_path, *AT_ITS_END, *before, *after)
    assert (ended.returncode, ended.stderr) == (0, "")
    version, *told = ended.stdout.splitlines()
    assert version.startswith("dsort ")
    assert told == ["came back 0"] * comes_back + ["at the end"]
    assert [each.name for each in tmp_path.iterdir()] == ["in"]  # no temporary directory


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    ("before", "told"),
    [(POOL, "uploaded"), (STUCK, "uploading")],
    ids=["until they are done", "until Ctrl-C"],
)
def test_a_command_waits_for_threads_of_its_own(
    before: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    ended = run_script(tmp_path, *AT_ITS_END, *before, "main()", "print('came back')")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[1:] == [told, "at the end"]


def test_the_process_of_a_services_job_ends_with_the_job(tmp_path: Path) -> None:
    job = ("import types", "job = types.ModuleType('dsort.service.hosting.job_main')")
    job += ("job.main = lambda arguments: 7", "sys.modules[job.__name__] = job")
    start = "from dsort.service.hosting.job_start import main"
    ended = run_script(tmp_path, *AT_ITS_END, *job, start, "main()", "print('came back')")
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "at the end\n", "")
