"""Go's own packages read what jobs write: tars, tars in gzip, and zips. Many loaders are in Go."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.container_kinds import kind_named, some_records
from tests.support.engine import spec_of
from tests.support.inline_runtime import Moved, run_inline

GO = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
SOURCE = Path(__file__).parents[2] / "support" / "read_archives.go"

pytestmark = [
    pytest.mark.skipif(GO is None, reason="there is no Go here"),
    pytest.mark.exhaustive,  # Go compiles its library first, which takes half a minute
]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that reads archives."""
    directory = tmp_path_factory.mktemp("go")
    cache = os.environ.get("GOCACHE", str(directory / "cache"))
    environment = {**os.environ, "GO111MODULE": "off", "GOCACHE": cache}
    command = [str(GO), "build", "-o", str(directory / "reader"), str(SOURCE)]
    subprocess.run(command, env=environment, check=True, cwd=directory)
    return directory / "reader"


@pytest.mark.parametrize("source", [".tar", ".zip"])
@pytest.mark.parametrize("output", [".tar", ".tgz", ".tar.gz", ".zip"])
def test_go_finds_every_file_byte_for_byte(
    source: str, output: str, reader: Path, tmp_path: Path
) -> None:
    records = some_records("go", 40, bytes_max=5000)
    kind = kind_named(source)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"s-0{source}").write_bytes(kind.write(records))
    spec = spec_of(
        input_format={"objnames": [f"s-0{source}"]},
        output_extension=output,
        algorithm={"kind": "shuffle", "seed": 1},
    )
    run_inline(spec, tmp_path, Moved("spill"))
    paths = sorted((tmp_path / "out").glob(f"out-*{output}"))
    assert len(paths) == 8
    done = subprocess.run([reader, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wanted = []
    for record in records:
        for name, data in (
            (f"{record.key}.bin", record.data),
            (f"{record.key}.cls", b"%d" % record.number),
        ):
            wanted.append(f"{name} {len(data)} {hashlib.sha256(data).hexdigest()}")
    assert sorted(done.stdout.splitlines()) == sorted(wanted)
