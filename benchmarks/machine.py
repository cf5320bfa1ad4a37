"""The machine, system and versions of a result: a figure cannot be judged without them."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path

import psutil

__all__ = ["QUIET_CORES_MAX", "busy_cores", "core_count", "cp_command", "describe", "file_system"]

LIBRARIES = ("dsort", "numpy", "ray", "webdataset", "pyarrow", "pandas", "duckdb", "polars")
QUIET_CORES_MAX = 0.15
"""A quiet machine keeps at most so many cores busy."""
PROBE_SECONDS = 2.0


def core_count() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy_cores(seconds: float = PROBE_SECONDS) -> float:
    """Cores that this machine kept busy while this process slept for ``seconds``."""
    before = psutil.cpu_times()
    time.sleep(seconds)
    after = psutil.cpu_times()
    idle = after.idle - before.idle + getattr(after, "iowait", 0) - getattr(before, "iowait", 0)
    return max(0.0, (sum(after) - sum(before) - idle) / seconds)


def describe(directory: Path) -> dict[str, str]:
    """Machine, system and versions, in the order in which they are printed."""
    versions = [f"{name} {found}" for name in LIBRARIES if (found := _version(name))]
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return {
        "cpu": f"{_cpu_model()}, {core_count()} cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": file_system(directory),
        "python": platform.python_version(),
        "libraries": ", ".join(versions),
        "cp": f"{_cp_version()} ({' '.join(cp_command(directory))})",
        "load average before": load,
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def file_system(directory: Path) -> str:
    """Type of the file system that ``directory`` is on, as ``/proc/self/mountinfo`` says."""
    path = str(directory.resolve())
    best, kind = "", "unknown"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except FileNotFoundError:
        return kind
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split()[4]
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def _cp_version() -> str:
    done = subprocess.run(["cp", "--version"], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else "cp"


def cp_command(directory: Path) -> list[str]:
    """``cp``, with an option to copy bytes where the file system could share blocks."""
    source, target = directory / ".reflink-from", directory / ".reflink-to"
    source.write_bytes(b"x" * 65536)
    try:
        shared = subprocess.run(
            ["cp", "--reflink=always", str(source), str(target)], capture_output=True, check=False
        )
        return ["cp", "--reflink=never"] if shared.returncode == 0 else ["cp"]
    finally:
        source.unlink()
        target.unlink(missing_ok=True)
