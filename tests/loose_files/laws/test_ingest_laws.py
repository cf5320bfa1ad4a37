"""Every file of random trees becomes one member, as a plain-Python model says, or is counted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import DuplicateError
from tests.support.engine import run_local, verify_local
from tests.support.loose_files import contents_out, ingest_spec, write_tree

pytestmark = pytest.mark.usefixtures("workers_here")

PARTS = ("a", "b.c", "d", ".e", "f g", "\N{GREEK SMALL LETTER ALPHA}", "n" * 60)
STEMS = ("1", "2.x", ".h", "3", "s" * 120)
EXTENSIONS = ("jpg", "JPG", "seg.png", "txt", "")


def random_tree(bits: random.Random) -> dict[str, bytes]:
    files = {}
    for _ in range(bits.randrange(1, 25)):
        parts = [bits.choice(PARTS) for _ in range(bits.randrange(3))]
        extension = bits.choice(EXTENSIONS)
        name = bits.choice(STEMS) + (f".{extension}" if extension else "")
        files["/".join([*parts, name])] = bits.randbytes(bits.choice((0, 1, 511, 512, 3000)))
    return files


def member_of(path: str, ingest: dict[str, Any]) -> tuple[str, str] | str:
    """(key, extension), or why not."""
    *directories, base = path.split("/")
    if any(part.startswith(".") for part in (*directories, base)):
        return "hidden_files"
    folders = ingest["layout"] == "folders"
    last = ingest.get("dots", "last" if folders else "first") == "last"
    stem, dot, extension = base.rpartition(".") if last else base.partition(".")
    wanted = ingest.get("extensions")
    if not dot or not extension or not stem:
        return "other_files" if wanted else "unusable_files"
    if folders and not directories:
        return "unusable_files"
    if wanted and extension.lower() not in wanted:
        return "other_files"
    where = ingest.get("key", "path")
    stem = stem.replace(".", "_")
    if where == "name":
        return stem, extension
    if where == "joined":
        return "".join([*directories, stem]).replace(".", "_"), extension
    return "/".join([*directories, stem]), extension


def modelled(files: dict[str, bytes], ingest: dict[str, Any]) -> tuple[dict[str, bytes], Any]:
    """(members, how many files are left out for each reason); KeyError for two that are one."""
    found: dict[str, bytes] = {}
    lower: set[str] = set()
    classes: dict[str, str] = {}
    left_out: dict[str, int] = {}
    for path, data in files.items():
        member = member_of(path, ingest)
        if isinstance(member, str):
            left_out[member] = left_out.get(member, 0) + 1
            continue
        key, extension = member
        if f"{key}.{extension.lower()}" in lower:
            raise KeyError(path)
        lower.add(f"{key}.{extension.lower()}")
        found[f"{key}.{extension}"] = data
        own = path.split("/")[0]
        if classes.setdefault(key, own) != own and ingest["layout"] == "folders":
            raise KeyError(path)
    if ingest["layout"] == "folders":
        numbers = {name: at for at, name in enumerate(sorted({*classes.values()}))}
        found |= {f"{key}.cls": b"%d" % numbers[name] for key, name in classes.items()}
    return found, left_out


@pytest.mark.parametrize("seed", range(8))
def test_each_file_is_one_member_or_counted(seed: int, tmp_path: Path) -> None:
    bits = random.Random(f"ingest {seed}")
    files = random_tree(bits) | {"a/always.jpg": b"x"}
    ingest: dict[str, Any] = {"layout": bits.choice(("files", "folders")), "unusable": "drop"}
    for name, choices in (
        ("key", ("path", "name", "joined")), ("dots", ("first", "last")),
        ("extensions", (["jpg", "txt"],)),
    ):  # fmt: skip
        if bits.random() < 0.5:
            ingest[name] = bits.choice(choices)
    write_tree(tmp_path / "in", files)
    spec = ingest_spec(ingest=ingest, algorithm={"kind": "shuffle", "seed": seed})
    try:
        members, left_out = modelled(files, ingest)
    except KeyError:
        with pytest.raises(DuplicateError):
            run_local(tmp_path, spec)
        return
    report = run_local(tmp_path, spec)
    assert contents_out(tmp_path) == members
    assert {each.kind: each.count for each in report.reactions} == left_out
    verified = verify_local(tmp_path, report)
    assert (verified.problems, verified.warnings) == ((), ())
