"""Torture cases as real writers make them: GNU tar, Python's ``tarfile`` and webdataset."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

from tests.support.internals import MemberKind
from tests.support.tar_torture import LONG, Found, TarCase

GNU_FORMATS = ("ustar", "gnu", "pax", "v7", "oldgnu")
_PYTHON_FORMATS = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}


def tarfile_cases() -> list[TarCase]:
    """Tars that Python's ``tarfile`` writes in its three formats."""
    return [_python_case(name, number) for name, number in _PYTHON_FORMATS.items()]


def _python_case(name: str, number: int) -> TarCase:
    out = io.BytesIO()
    found: list[Found] = []
    with tarfile.open(fileobj=out, mode="w", format=number) as archive:

        def add(path: str, payload: bytes, kind: bytes = tarfile.REGTYPE, target: str = "") -> None:
            info = tarfile.TarInfo(path)
            info.size, info.type, info.linkname = len(payload), kind, target
            info.mtime = 1_700_000_000.25 if name == "pax" else 1_700_000_000
            archive.addfile(info, io.BytesIO(payload))

        for i, size in enumerate((0, 1, 512, 513, 5000)):
            add(f"{i:04d}.jpg", bytes([65 + i]) * size)
            found.append(Found(b"%04d.jpg" % i, bytes([65 + i]) * size))
        for path in (LONG.decode(), "größe.jpg", "d/" * 49 + "ab"):
            if name == "ustar" and len(path) > 255:
                continue
            add(path, b"long")
            found.append(Found(path.encode(), b"long"))
        add("soft", b"", tarfile.SYMTYPE, LONG.decode()[-90:])
        found.append(Found(b"soft", b"", MemberKind.SYMLINK))
        add("hard", b"", tarfile.LNKTYPE, "0004.jpg")
        found.append(Found(b"hard", b"E" * 5000))
        add("dir", b"", tarfile.DIRTYPE)
        found.append(Found(b"dir/", b"", MemberKind.DIRECTORY))
    return TarCase(f"tarfile, {name}", out.getvalue(), found, {"hardlinks_resolved": 1})


def webdataset_cases() -> list[TarCase]:
    """Tars of webdataset's writer: with its default float mtime, which takes a pax header for each
    member, and with a whole mtime."""
    import webdataset

    cases = []
    for name, mtime in (("float mtime", None), ("whole mtime", 1_700_000_000)):
        out = io.BytesIO()
        writer = webdataset.TarWriter(out, mtime=mtime)
        found = []
        for i in range(50):
            key = f"{i:06d}" if i % 10 else f"täglich/{'deep/' * 20}{i:06d}"
            jpg, cls = bytes([i]) * (i * 37), b"%d" % i
            writer.write({"__key__": key, "jpg": jpg, "cls": cls})
            found += [Found(f"{key}.cls".encode(), cls), Found(f"{key}.jpg".encode(), jpg)]
        writer.close()
        cases.append(TarCase(f"webdataset, {name}", out.getvalue(), found))
    return cases


def gnu_tar_cases(directory: Path) -> list[TarCase]:
    """Tars that GNU tar writes in its five formats, from files below ``directory``."""
    return [_gnu_case(directory, name) for name in GNU_FORMATS]


def _gnu_case(directory: Path, name: str) -> TarCase:
    source = directory / name
    source.mkdir()
    found: list[Found] = []

    def write(path: str, payload: bytes) -> None:
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(payload)
        found.append(Found(path.encode(), payload))

    for i, size in enumerate((0, 1, 512, 513, 70_000)):
        write(f"{i:04d}.jpg", bytes([65 + i]) * size)
    if name != "v7":
        write(LONG.decode()[-150:] if name == "ustar" else LONG.decode(), b"long")
    os.link(source / "0003.jpg", source / "hard")
    found.append(Found(b"hard", b"D" * 513))
    (source / "soft").symlink_to("0001.jpg")
    found.append(Found(b"soft", b"", MemberKind.SYMLINK))
    (source / "dir").mkdir()
    found.append(Found(b"dir/", b"", MemberKind.DIRECTORY))
    sparse = name in ("gnu", "pax", "oldgnu")
    if sparse:
        with (source / "holes.bin").open("wb") as file:
            for at in range(0, 3_000_000, 500_000):
                file.seek(at)
                file.write(b"data")
        found.append(Found(b"holes.bin", None))
    if name != "v7":
        os.mkfifo(source / "fifo")
        found.append(Found(b"fifo", b"", MemberKind.DEVICE))
    names = [member.name.decode().rstrip("/") for member in found]
    command = ["tar", f"--format={name}", "--no-recursion", "-cf", "-", *(["-S"] * sparse), *names]
    data = subprocess.run(command, cwd=source, capture_output=True, check=True).stdout
    return TarCase(f"GNU tar, {name}", data, found, {"hardlinks_resolved": 1})
