"""The tools that everybody has unpack what jobs write, byte for byte: GNU tar, bsdtar, unzip, and
the tools of the codecs."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.container_kinds import kind_named, some_records
from tests.support.datasets import files_of
from tests.support.debian import CannotInstall, apt_install, skip_outside_ci
from tests.support.engine import spec_of
from tests.support.inline_runtime import Moved, run_inline

PACKAGES = {"bsdtar": "libarchive-tools", "tar": "tar", "unzip": "unzip"} | {
    tool: tool for tool in ("gzip", "zstd", "lz4")
}
UNPACKED_BY: dict[str, tuple[list[str], ...]] = {
    ".tar": (["tar", "-xf"], ["bsdtar", "-xf"]),
    ".tgz": (["tar", "-xzf"], ["bsdtar", "-xf"]),
    ".tar.zst": (["tar", "--zstd", "-xf"], ["bsdtar", "-xf"]),
    ".tar.lz4": (["tar", "-I", "lz4", "-xf"], ["bsdtar", "-xf"]),
    ".zip": (["unzip", "-q"], ["bsdtar", "-xf"]),
}
TESTED_BY = {".tgz": "gzip", ".tar.zst": "zstd", ".tar.lz4": "lz4"}


@cache
def tool(name: str) -> str:
    """Its path; installed first if need be."""
    if shutil.which(name) is None:
        try:
            apt_install(PACKAGES[name])
        except CannotInstall as error:
            skip_outside_ci(f"{name} cannot be had: {error.reason}")
    return shutil.which(name) or skip_outside_ci(f"there is no {name}")


def told(*command: str | Path, where: Path) -> str:
    """What a command says, which is to end well."""
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.sample(keep=5)
@pytest.mark.parametrize("source", [".tar", ".zip"])
@pytest.mark.parametrize("output", UNPACKED_BY)
def test_tools_find_every_file_and_nothing_to_warn_of(
    source: str, output: str, tmp_path: Path
) -> None:
    records = some_records("tools", 30, bytes_max=40_000)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"s-0{source}").write_bytes(kind_named(source).write(records))
    spec = spec_of(
        input_format={"objnames": [f"s-0{source}"]},
        output_extension=output,
        output_shard_size="200KB",
        algorithm={"kind": "shuffle", "seed": 1},
    )
    run_inline(spec, tmp_path, Moved("spill"))
    paths = sorted((tmp_path / "out").glob(f"out-*{output}"))
    assert len(paths) > 2
    wanted = {f"{record.key}.bin": record.data for record in records}
    wanted |= {f"{record.key}.cls": b"%d" % record.number for record in records}
    for number, (program, *options) in enumerate(UNPACKED_BY[output]):
        unpacked = tmp_path / f"unpacked-{number}"
        unpacked.mkdir()
        for path in paths:
            assert told(tool(program), *options, path, where=unpacked) == ""
        assert files_of(unpacked, "**/*.*") == wanted, program
    for path in paths if output in TESTED_BY else ():
        assert told(tool(TESTED_BY[output]), "-tq", path, where=tmp_path) == ""
