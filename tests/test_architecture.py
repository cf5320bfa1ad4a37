"""The shape of the code: imports point downwards, deciding is pure, and functions stay small.

Reads the source with ``ast`` and imports nothing of it, so that it runs in a second.
"""

from __future__ import annotations

import ast
import os
import re
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dsort"

ROOMS = (
    {"__main__"},
    {"cli"},
    {"__init__"},
    {"builder", "client", "service", "staged_samples"},
    {"api", "progress_display"},
    {"opened_job"},
    {"web"},
    {"model"},
    {"verification"},
    {"amendments", "loader", "materialization", "result_order", "shard_contents"},
    {"reading"},
    {"job"},
    {"results"},
    {"runtime"},
    {"workers"},
    {"moves"},
    {"pipeline"},
    {"loose_files"},
    {"scratch"},
    {"options"},
    {"settings"},
    {"spec"},
    {"transforms"},
    {"keymap"},
    {"user_code"},
    {"containers", "order", "sidecars"},
    {"expressions"},
    {"storage"},
    {"naming"},
    {"data"},
    {"stop_flag"},
    {"html_tables", "option_fields", "registry"},
    {
        *("bounds", "closing", "durations", "installation", "process_end", "retry", "sizes"),
    },
    {"errors", "log_lines", "version"},
)
"""From the top down. A room (a folder, or a module right under ``dsort``) imports lower rooms and
itself; rooms of one line know nothing of each other."""

ENGINE = {
    *("cli", "client", "containers", "data", "expressions", "job", "keymap", "loose_files"),
    *("model", "moves", "naming", "order", "pipeline", "results", "runtime", "scratch"),
    *("service", "settings", "sidecars", "spec", "storage", "transforms", "user_code"),
    *("verification", "web", "workers"),
}
"""Rooms whose modules are for each other: they have no ``__all__``."""
RAY_LIBRARY = "dsort/runtime/ray/library.py"
"""The exception: what it lists is Ray's."""

PURE = (
    "bounds",
    "closing",
    "data",
    "durations",
    "expressions",
    "results/journal_entries",
    "results/layout",
    "job/output_names",
    "keymap/match",
    "loader/order",
    "naming",
    "option_fields",
    "order",
    "sizes",
    "storage/network_policy",
    "storage/ref",
    "transforms",
)
"""What reads no clock, file, environment or random numbers of the process: the same arguments give
the same answer, on every machine."""

JUDGED = (
    *("dsort.job.commit", "dsort.job.coordinator", "dsort.job.plan", "dsort.job.surveys"),
    *("dsort.order.cut", "dsort.order.sort", "dsort.scratch.index", "dsort.workers"),
)
"""What ``verification`` judges and so must not use: a bug there would be in both sides."""

FEATURES = {
    "exact outputs": ("job/surveys/exact_outputs", "workers/operators/outputs"),
    "mix": ("job/surveys/mix", "workers/operators/mix"),
    "like": ("order/like", "result_order"),
    "known keys": ("job/known_keys", "workers/operators/known_keys"),
}
"""Features of the engine, and the files that each is: one for the coordinator, one for workers."""
FEATURE_FILES_MAX, FEATURE_LINES_MAX = 6, 250
"""So many files have to be read to add such a feature: its own, and those that name these. Only its
own lines count: elsewhere it is an import and a line or two."""

RAY_FOLDER = "dsort/runtime/ray/"

CATCHES_ALL = {
    "dsort/service/objects/shard_main.py": "the request gets an answer, whatever it was",
    "dsort/service/hosting/job_main.py": "the job's row says how it ended, whatever it was",
    "dsort/service/hosting/notifier.py": "one hook that goes wrong must not silence the others",
    "dsort/service/schedules/fire.py": "one schedule that goes wrong must not stop the others",
    "dsort/service/threads.py": "a bug in one turn must not end the thread of all jobs",
    "dsort/runtime/base.py": "a bug in a worker goes to the coordinator whole, with its traceback",
    "dsort/staged_samples.py": "encoding runs the user's code, whose error names the sample",
    "dsort/runtime/local.py": "a fork must not return into the frames of its coordinator",
    "dsort/user_code/child.py": "loading the user's code may raise anything, which is reported",
    "dsort/user_code/functions.py": "the user's code may raise anything; the record gets it",
    "dsort/stop_flag.py": "an error of any kind goes to the thread that waits for the answer",
}
"""Where an error of any kind may be caught, and why: it is handed on, or a loop has to outlive a
bad turn, and then logs the traceback in place."""

UNPICKLES = {
    "dsort/runtime/ray/runtime.py": "what the driver has put into Ray's object store",
    "dsort/runtime/local.py": "both ends of the socket pair between a coordinator and its worker",
}
"""Where bytes become objects of any class, and from whom they come: never from a file or a bucket,
for who can write there would run code here."""
PICKLES = {"cPickle", "cloudpickle", "dill", "jsonpickle", "marshal", "pickle", "shelve"}
CONNECTIONS = "multiprocessing.connection"

IMPURE_MODULES = {
    "asyncio",
    "boto3",
    "click",
    "fastapi",
    "http",
    "io",
    "multiprocessing",
    "obstore",
    "os",
    "pathlib",
    "psutil",
    "pydantic",
    "random",
    "ray",
    "requests",
    "rich",
    "secrets",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
    "yaml",
}
IMPURE_CALLS = {"breakpoint", "exec", "eval", "input", "open", "print"}
IMPURE_METHODS = {"fromfile", "memmap", "now", "tofile", "today", "utcnow"}

PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md")
PATH = re.compile(
    r"(?<![\w./<>-])"
    r"(?:(?:benchmarks|cluster|docs|dsort|packages|specs|tests)/[\w./-]*|[\w./-]+/[\w-]+\.py\b)"
)
"""A file or folder of the repository in such a page: from the root, so that it can be looked up."""

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
LINE_COLUMNS_MAX = 100
DOCSTRING_WORDS_MIN = 3
PRAGMA = re.compile(r"\s+# (noqa|type: ignore).*")  # no reader's: ruff does not count it, either
LOOKED_AT = (
    ast.AsyncFunctionDef,
    ast.Attribute,
    ast.Call,
    ast.ExceptHandler,
    ast.FunctionDef,
    ast.If,
    ast.Import,
    ast.ImportFrom,
    ast.keyword,
)
"""What tests ask for, of all classes of nodes."""
Node = TypeVar("Node", bound=ast.AST)
OPEN_ENDS = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")
TEXT_SUFFIXES = {".cfg", ".json", ".lock", ".md", ".py", ".sh", ".toml", ".yaml", ".yml", ""}
NOT_OURS = {"bench-data", "build", "demo", "dist", "site"}


PHASES = {
    *("create", "duplicates", "extraction", "known_keys", "lineage"),
    *("order", "plan", "setup/probes", "setup/tables"),
}
ENGINE_ROOMS = {
    *("data", "job", "keymap", "loader", "model", "moves", "naming", "order", "reading"),
    *("results", "runtime", "scratch", "verification", "workers"),
}
"""Their modules move: tests name them in ``tests/support/internals.py`` alone."""


@cache
def sources(*directories: str) -> list[Path]:
    return sorted(path for name in directories for path in (ROOT / name).rglob("*.py"))


def all_sources() -> list[Path]:
    return sources("dsort", "tests", "benchmarks", "docs")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes_of(path: Path) -> dict[type[ast.AST], list[ast.AST]]:
    """All of a file's tree by class, for walking through it takes as long as to parse it."""
    found: dict[type[ast.AST], list[ast.AST]] = {}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, LOOKED_AT):
            found.setdefault(type(node), []).append(node)
    return found


def nodes(path: Path, of_class: type[Node]) -> list[Node]:
    """All nodes of that class, wherever in a file."""
    return cast("list[Node]", nodes_of(path).get(of_class, []))


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, dotted name) of all that a file imports, wherever in it and for whatever purpose."""
    found = [(node.lineno, alias.name) for node in nodes(path, ast.Import) for alias in node.names]
    for node in nodes(path, ast.ImportFrom):
        assert node.level == 0, f"{named(path)}:{node.lineno}: relative import"
        found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return tuple(found)


def none_of(wrong: list[str]) -> None:
    assert not wrong, "\n".join(["", *wrong])


@cache
def modules() -> dict[str, Path]:
    """All modules of the package by their dotted names; a package is its ``__init__``."""
    return {
        named(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in sources("dsort")
    }


def imported_modules(path: Path, *, when_run: bool = False) -> set[str]:
    """The modules of ours that a file imports. ``when_run``: not those for the types alone."""
    found = set()
    for line, dotted in imports(path):
        if dotted.split(".")[0] == "dsort" and not (when_run and line in lines_for_types(path)):
            while dotted not in modules():
                dotted = dotted.rpartition(".")[0]
            found.add(dotted)
    return found


@cache
def lines_for_types(path: Path) -> frozenset[int]:
    """The lines under ``if TYPE_CHECKING``."""
    return frozenset(
        line
        for node in nodes(path, ast.If)
        if ast.unparse(node.test) == "TYPE_CHECKING"
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    )


def room_of(module: str) -> str:
    return [*module.split("."), "__init__"][1]


def test_rooms_import_only_lower_ones() -> None:
    height = {room: -line for line, rooms in enumerate(ROOMS) for room in rooms}
    arrows = set()
    for name, path in modules().items():
        assert room_of(name) in height, f"{room_of(name)} is in no line: put it into ROOMS"
        for found in imported_modules(path):
            up = height[room_of(found)] >= height[room_of(name)]
            if up and room_of(found) != room_of(name):
                arrows.add((name, found))
    none_of([f"{name} imports {found}" for name, found in sorted(arrows)])


def test_the_service_never_names_its_guest() -> None:
    own = {*sources("dsort/service", "dsort/model")} - {*sources("dsort/service/aistore")}
    none_of([named(path) for path in own if "aistore" in text_of(path).lower()])


def test_verification_uses_nothing_that_it_judges() -> None:
    wrong = [
        f"{named(path)}:{line}: {dotted}"
        for path in sources("dsort/verification")
        for line, dotted in imports(path)
        if f"{dotted}.".startswith(tuple(f"{each}." for each in JUDGED))
    ]
    none_of(wrong)


def test_no_module_imports_itself_by_way_of_others() -> None:
    left = {
        name: {each for each in imported_modules(path, when_run=True) if each != name}
        for name, path in modules().items()
    }
    while leaves := {name for name, found in left.items() if not found & left.keys()}:
        left = {name: found for name, found in left.items() if name not in leaves}
    none_of([f"{name}: {sorted(found & left.keys())}" for name, found in sorted(left.items())])


def test_phases_of_a_job_read_the_pipeline_and_not_the_spec() -> None:
    phases = [ROOT / f"dsort/job/{name}.py" for name in sorted(PHASES)]
    phases += sources("dsort/workers", "dsort/moves", "dsort/scratch", "dsort/job/surveys")
    read = [(path, node) for path in phases for node in nodes(path, ast.Attribute)]
    none_of([f"{named(path)}:{node.lineno}" for path, node in read if node.attr == "spec"])


def test_only_one_folder_imports_ray() -> None:
    found = {
        named(path)
        for path in sources("dsort")
        for _, dotted in imports(path)
        if dotted.split(".")[0] == "ray"
    }
    assert found
    none_of([name for name in sorted(found) if not name.startswith(RAY_FOLDER)])


def test_nothing_is_unpickled_but_what_our_own_processes_send() -> None:
    found = {
        named(path)
        for path in sources("dsort")
        for _, dotted in imports(path)
        if dotted.split(".")[0] in PICKLES or dotted.startswith(CONNECTIONS)
    }
    assert found == UNPICKLES.keys()
    wrong = [
        f"{named(path)}:{node.lineno}: allow_pickle"
        for path in all_sources()
        for node in nodes(path, ast.keyword)
        if node.arg == "allow_pickle"
    ]
    none_of(wrong)


def pure_sources() -> list[Path]:
    found = []
    for name in PURE:
        folder, file = sources(f"dsort/{name}"), PACKAGE / f"{name}.py"
        assert folder or file.is_file(), f"PURE names {name}, which is not there"
        found += folder or [file]
    return found


def test_tests_reach_the_inside_of_the_engine_by_one_file() -> None:
    """What moves there is then named in one place."""
    wrong = [
        f"{named(path)}:{line}: {dotted}"
        for path in sources("tests")
        for line, dotted in imports(path)
        if dotted.startswith("dsort.")
        and dotted.split(".")[1] in ENGINE_ROOMS
        and not re.fullmatch(r"dsort\.loader\.[A-Z]\w+", dotted)  # which users import
    ]
    none_of(wrong)


def test_what_is_pure_imports_nothing_impure() -> None:
    wrong = [
        f"{named(path)}:{line}: {dotted}"
        for path in pure_sources()
        for line, dotted in imports(path)
        if dotted.split(".")[0] in IMPURE_MODULES
        and not dotted.startswith(("pathlib.Pure", "urllib.parse"))
    ]
    none_of(wrong)


def test_what_is_pure_opens_no_file_and_reads_no_clock() -> None:
    wrong = []
    for path in pure_sources():
        for call in nodes(path, ast.Call):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if name in IMPURE_CALLS or method in IMPURE_METHODS:
                wrong.append(f"{named(path)}:{call.lineno}: {name or method}()")
        for node in nodes(path, ast.Attribute):
            # numpy.random holds a generator that the whole process shares.
            if node.attr == "random" and ast.unparse(node) in ("np.random", "numpy.random"):
                wrong.append(f"{named(path)}:{node.lineno}: {ast.unparse(node)}")
    none_of(wrong)


@pytest.mark.parametrize("unit", ["results/report", "stop_flag", "errors"])
def test_what_everybody_imports_is_light(unit: str) -> None:
    heavy = {"click", "numpy", "pydantic", "ray", "rich", "yaml"}
    found = [dotted for _, dotted in imports(PACKAGE / f"{unit}.py")]
    assert [dotted for dotted in found if dotted.split(".")[0] in heavy] == []


def test_files_functions_and_lines_are_short() -> None:
    wrong = []
    for path in all_sources():
        lines = text_of(path).splitlines()
        if len(lines) > FILE_LINES_MAX:
            wrong.append(f"{named(path)}: {len(lines)} lines")
        for number, line in enumerate(lines, 1):
            if len(line) > LINE_COLUMNS_MAX < len(PRAGMA.sub("", line)):
                wrong.append(f"{named(path)}:{number}: {len(line)} columns")
        functions: list[ast.FunctionDef | ast.AsyncFunctionDef]
        functions = [*nodes(path, ast.FunctionDef), *nodes(path, ast.AsyncFunctionDef)]
        for node in functions:
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                wrong.append(f"{named(path)}:{node.lineno}: {node.name} has {length} lines")
    none_of(wrong)


def test_modules_say_what_they_are() -> None:
    wrong = []
    for path in all_sources():
        is_there = text_of(path).strip() or path.is_relative_to(PACKAGE)
        words = (ast.get_docstring(tree_of(path)) or "").split()
        if is_there and len(words) < DOCSTRING_WORDS_MIN:
            wrong.append(f"{named(path)}: {' '.join(words) or 'no docstring'}")
    none_of(wrong)


def exported(path: Path) -> list[str] | None:
    for node in tree_of(path).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        if isinstance(target, ast.Name) and target.id == "__all__":
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert node.value is not None
            return list(ast.literal_eval(node.value))
    return None


def export_order(name: str) -> tuple[bool, bool, list[str | int]]:
    """Constants, then classes, then functions, and numbers by value: the order ruff keeps, too."""
    parts = [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", name)]
    return not name.isupper(), not name[0].isupper(), parts


def test_modules_list_what_they_export_sorted() -> None:
    wrong = []
    for path in sources("dsort"):
        names = exported(path)
        room = path.relative_to(PACKAGE).parts[0]
        if room in ENGINE and path.name != "__init__.py" and named(path) != RAY_LIBRARY:
            if names is not None:
                wrong.append(f"{named(path)}: in the engine, names without _ are what others use")
            continue
        only_docstring = len(tree_of(path).body) <= 1
        key = [export_order(name) for name in names or []]
        if key != sorted(key) or (names is None and not only_docstring):
            wrong.append(named(path))
    none_of(wrong)


def test_no_handler_swallows_everything() -> None:
    wrong = []
    for path in all_sources():
        if named(path) in CATCHES_ALL:
            continue
        for node in nodes(path, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "everything"
            last = node.body[-1]
            raises_again = isinstance(last, ast.Raise) and last.exc is None
            if caught in ("everything", "Exception", "BaseException") and not raises_again:
                wrong.append(f"{named(path)}:{node.lineno}: except {caught}")
    none_of(wrong)


def test_no_two_files_of_tests_have_one_name() -> None:
    """Pytest imports them by it, and stops at the second."""
    names = [path.name for path in sources("tests") if path.name.startswith("test_")]
    none_of(sorted({name for name in names if names.count(name) > 1}))


def test_tests_never_sleep() -> None:
    wrong = []
    for path in sources("tests"):
        for node in nodes(path, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called == "sleep":
                wrong.append(f"{named(path)}:{node.lineno}")
    none_of(wrong)


@cache
def texts() -> list[tuple[Path, str]]:
    """All files of the repository that people read, with their text."""
    found = []
    for directory, folders, names in os.walk(ROOT):
        top = Path(directory) == ROOT
        folders[:] = [
            name
            for name in folders
            if name == ".ci" or not (name.startswith(".") or (top and name in NOT_OURS))
        ]
        for name in names:
            path = Path(directory, name)
            is_text = path.suffix in TEXT_SUFFIXES and path.is_file()
            if is_text and (name == ".ci" or not name.startswith(".")):
                found.append((path, text_of(path)))
    return sorted(found)


def test_pages_about_the_code_have_short_lines() -> None:
    none_of(
        [
            f"{page}:{number}: {len(line)} columns"
            for page in PAGES
            for number, line in enumerate((ROOT / page).read_text("utf-8").splitlines(), 1)
            if len(line) > LINE_COLUMNS_MAX
        ]
    )


def test_pages_about_the_code_name_what_is_there() -> None:
    designs = sorted((ROOT / "docs" / "design").glob("*.md"))
    none_of(
        [
            f"{page}:{number}: {name}"
            for page in (*(ROOT / each for each in PAGES), *designs)
            for number, line in enumerate(page.read_text("utf-8").splitlines(), 1)
            for name in (found.rstrip(".") for found in PATH.findall(line))
            if not (ROOT / name).exists()
        ]
    )


def test_the_page_on_the_architecture_lists_the_rooms() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    block = text.partition("rooms of one line know nothing of each other:\n\n")[2].split("\n\n")[0]
    assert [set(line.split()) for line in block.splitlines()] == list(ROOMS)


def test_nothing_is_left_open() -> None:
    wrong = [
        f"{named(path)}:{number}: {line.strip()}"
        for path, text in texts()
        if any(mark in text for mark in OPEN_ENDS)
        for number, line in enumerate(text.splitlines(), 1)
        if any(mark in line.split() or f"{mark}:" in line for mark in OPEN_ENDS)
    ]
    none_of(wrong)


def test_nothing_names_this_machine() -> None:
    # A home like /root, right under the top, is a name that any text may use.
    here = {str(each) for each in (ROOT, ROOT.parent, Path.home()) if len(each.parts) > 2}
    wrong = [
        f"{named(path)}: {place}" for path, text in texts() for place in here if f"{place}/" in text
    ]
    none_of(wrong)


def test_the_lock_names_no_host() -> None:
    lock = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
    wrong = [line for line in lock.splitlines() if "://" in line or line.startswith("-")]
    none_of(wrong)
    assert "--hash=sha256:" in lock


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_a_file_for_the_coordinator_and_one_for_workers(feature: str) -> None:
    own = [PACKAGE / f"{name}.py" for name in FEATURES[feature]]
    names = {f"dsort.{name.replace('/', '.')}" for name in FEATURES[feature]}
    users = [name for name, path in modules().items() if names & imported_modules(path)]
    assert len({*users, *names}) <= FEATURE_FILES_MAX, users
    assert sum(len(text_of(path).splitlines()) for path in own) <= FEATURE_LINES_MAX
