"""Command lines in processes of their own, as forks of one process that has loaded their modules
(``forked``)."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from tests.support.children import COMMANDS, PYTESTS
from tests.support.commands import Ended
from tests.support.coordinators import LOADED as COORDINATOR_LOADED
from tests.support.forked import Forked, Nursery, become_command

END_SECONDS_MAX = 120.0
LOADED = {
    COMMANDS: (__name__, "dsort.__main__", *COORDINATOR_LOADED, "dsort.cli.look"),
    PYTESTS: (
        *(__name__, "_pytest.config", "_pytest.junitxml", "_pytest.terminal", "_pytest.unittest"),
        *("_hypothesis_pytestplugin", "anyio.pytest_plugin", "pytest_timeout", "xdist.plugin"),
        "tests.conftest",
    ),
}


def run_dsort(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: str = ""
) -> Ended:
    """Run ``python -m dsort ARGUMENTS`` to its end."""
    return _run(COMMANDS, "become_dsort", arguments, cwd=cwd, env=env, stdin=stdin)


def begin_command(become: str, *given: Any, **named: Any) -> Forked:
    """Begin a process that has loaded the modules of commands (see ``Nursery.begin``)."""
    return Nursery.called(COMMANDS, LOADED[COMMANDS]).begin(become, *given, **named)


def run_pytest(arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> Ended:
    """Run ``python -m pytest ARGUMENTS`` to its end."""
    return _run(PYTESTS, "become_pytest", arguments, cwd=cwd, env=env)


def _run(
    name: str,
    become: str,
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: str = "",
) -> Ended:
    file = tempfile.TemporaryFile
    with file() as given, file() as out, file() as err:
        given.write(stdin.encode())
        given.seek(0)
        process = Nursery.called(name, LOADED[name]).begin(
            f"{__name__}:{become}",
            list(arguments),
            descriptors=[out.fileno(), err.fileno(), given.fileno()],
            env=env,
            cwd=cwd,
        )
        try:
            code = process.wait(END_SECONDS_MAX)
        finally:
            process.kill()
        assert code is not None
        return Ended(code, _text(out), _text(err))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def become_dsort(descriptors: list[int], parent: int, arguments: list[str]) -> NoReturn:
    """Be ``python -m dsort``."""
    from dsort.__main__ import main

    become_command(descriptors)
    sys.argv = [main.__code__.co_filename, *arguments]
    raise SystemExit(main())


def become_pytest(descriptors: list[int], parent: int, arguments: list[str]) -> NoReturn:
    """Be ``python -m pytest``, without a plugin that takes a second to load (see the Makefile)."""
    import pytest

    loaded = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    arguments = ["-p", "no:schemathesis", "-W", loaded, *arguments]

    become_command(descriptors)
    sys.path.insert(0, str(Path.cwd()))
    sys.argv = [pytest.__file__, *arguments]
    raise SystemExit(pytest.main(arguments))
