"""The job service under load, as users start it: ``dsort serve`` over SQLite, in its own process.

One job runs the whole time. It waits for a key map that this process does not send, so that only
the service and this client use the machine. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import http.server
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks.measure import REPOSITORY

__all__ = ["main"]

CLIENTS = 8
READY_SECONDS_MAX = 60.0
STREAM_SECONDS_MAX = 60.0
LIST_JOBS = 1000
PACE, PACED_CLIENTS = 50, 16
"""``PACE``: submissions a second, at equal distances, each from a client that is free."""
SPEC = {
    "input_bck": "images",
    "output_bck": "shuffled",
    "input_format": {"template": "samples-{00..18}"},
    "output_shard_size": "10MB",
    "algorithm": {"kind": "shuffle"},
}


class _Held(http.server.BaseHTTPRequestHandler):
    """A server of a key map that sends no answer before ``released`` is set."""

    released = threading.Event()
    asked = threading.Event()

    def do_GET(self) -> None:
        self.asked.set()
        self.released.wait()
        body = b'{"held-%06d.tar": [".*"]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""


@contextlib.contextmanager
def _key_map_server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Held) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/held.json"
        finally:
            _Held.released.set()
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def _service(directory: Path, key_map: str) -> Iterator[str]:
    url_file = directory / "url"
    command = [sys.executable, "-m", "dsort", "serve", "--no-auth", "--port", "0"]
    command += ["--max-queued-per-owner", "1000000"]  # all jobs have one owner
    command += ["--root", str(directory), "--state-dir", str(directory / "state")]
    command += ["--ekm-allow-host", urlsplit(key_map).netloc, "--ekm-allow-private"]
    command += ["--url-file", str(url_file)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment.pop("DSORT_DATABASE_URL", None)
    with (directory / "service.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        end = time.monotonic() + READY_SECONDS_MAX
        while not url_file.exists():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((directory / "service.log").read_text()[-2000:])
            time.sleep(0.05)
        yield url_file.read_text().strip()
    finally:
        process.terminate()
        process.wait()


class _Client:
    """One connection, kept open."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content else None


def _submit(url: str, count: int) -> dict[str, Any]:
    """``count`` submissions by several clients. Checks that all acknowledged jobs exist then."""
    lock, made, seconds = threading.Lock(), list[str](), list[float]()

    def work(client_number: int) -> None:
        client = _Client(url)
        for number in range(client_number, count, CLIENTS):
            spec = {**SPEC, "output_format": f"job-{number}-%06d"}
            begun = time.perf_counter()
            status, view = client.ask("POST", "/v1/jobs", spec)
            taken = time.perf_counter() - begun
            assert status == 201, view
            with lock:
                made.append(view["job_id"])
                seconds.append(taken)

    begun = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(work, range(CLIENTS)))
    elapsed = time.perf_counter() - begun
    found, cursor, client = set(), "", _Client(url)
    while True:
        _, page = client.ask("GET", f"/v1/jobs?limit=500&state=queued{cursor}")
        found |= {job["job_id"] for job in page["jobs"]}
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    return {
        "submissions": count,
        "submissions_per_second": count / elapsed,
        "submission_p95_ms": quantiles(seconds, n=20)[-1] * 1e3,
        "lost": len(set(made) - found),
    }


def _paced(url: str, count: int) -> dict[str, Any]:
    """``count`` submissions at an even pace. The time of a submission begins when it is due, so it
    includes the wait for an earlier submission that is late."""
    seconds, begun = list[float](), time.perf_counter()

    def work(client_number: int) -> None:
        client = _Client(url)
        for number in range(client_number, count, PACED_CLIENTS):
            due = begun + number / PACE
            time.sleep(max(0.0, due - time.perf_counter()))
            spec = {**SPEC, "output_format": f"paced-{number}-%06d"}
            status, view = client.ask("POST", "/v1/jobs", spec)
            seconds.append(time.perf_counter() - due)
            assert status == 201, view

    with ThreadPoolExecutor(PACED_CLIENTS) as pool:
        list(pool.map(work, range(PACED_CLIENTS)))
    ms = [each * 1e3 for each in seconds]
    return {
        "paced_per_second": PACE,
        "paced_p50_ms": median(ms),
        "paced_p95_ms": quantiles(ms, n=20)[-1],
    }


def _list(url: str, rounds: int) -> dict[str, Any]:
    """The time of a page of 50 jobs, and of a page of the next jobs in the queue, with all
    submitted jobs in the database."""
    client, seconds = _Client(url), []
    for number in range(rounds):
        query = ("", "?state=queued", "?owner=anyone&limit=100", "?text=job")[number % 4]
        begun = time.perf_counter()
        status, _ = client.ask("GET", f"/v1/jobs{query}")
        seconds.append(time.perf_counter() - begun)
        assert status == 200
    ms = [each * 1e3 for each in seconds]
    return {"list_p50_ms": median(ms), "list_p95_ms": quantiles(ms, n=20)[-1]}


def _streams(url: str, job_id: str, count: int) -> dict[str, Any]:
    """``count`` event streams of one job at once: the events of each, and the time of its stop."""
    ready, ended_at = threading.Barrier(count + 1), list[float]()
    lock = threading.Lock()

    def watch(_: int) -> None:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=STREAM_SECONDS_MAX)
        connection.request("GET", f"/v1/jobs/{job_id}/events")
        answer = connection.getresponse()
        assert answer.status == 200
        line = answer.readline()  # the first event has arrived
        ready.wait()
        while line and not line.startswith(b"event: end"):
            line = answer.readline()
        assert line, "the stream broke off"
        with lock:
            ended_at.append(time.perf_counter())
        connection.close()

    with ThreadPoolExecutor(count) as pool:
        watching = [pool.submit(watch, number) for number in range(count)]
        ready.wait(STREAM_SECONDS_MAX)
        begun = time.perf_counter()
        _, _ = _Client(url).ask("POST", f"/v1/jobs/{job_id}/stop", {"reason": "measured"})
        for each in watching:
            each.result(STREAM_SECONDS_MAX)
    after = sorted(each - begun for each in ended_at)
    return {"streams": count, "streams_told": len(ended_at), "told_all_after_s": after[-1]}


def _end_job(directory: Path, job_id: str) -> None:
    """Wait for the process of the job that ran: it outlives the service."""
    with sqlite3.connect(directory / "state" / "service.db") as database:
        [(pid,)] = database.execute("SELECT pid FROM jobs WHERE job_id = ?", (job_id,))
    end = time.monotonic() + READY_SECONDS_MAX
    with contextlib.suppress(psutil.NoSuchProcess):
        job = psutil.Process(pid)
        while job.status() != psutil.STATUS_ZOMBIE:  # its new parent may not reap it
            if time.monotonic() > end:
                raise RuntimeError(f"the process {pid} of job {job_id} does not end")
            time.sleep(0.05)


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("--submissions", type=int, default=2000)
    parser.add_argument("--paced", type=int, default=500)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--lists", type=int, default=200)
    parsed = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="dsort-bench-") as text:
        directory = Path(text)
        (directory / "images").mkdir()
        with _key_map_server() as key_map, _service(directory, key_map) as url:
            held = {**SPEC, "ekm_file": key_map}
            status, running = _Client(url).ask("POST", "/v1/jobs", held)
            assert status == 201, running
            if not _Held.asked.wait(READY_SECONDS_MAX):
                raise RuntimeError((directory / "service.log").read_text()[-2000:])
            result = _paced(url, parsed.paced)
            result |= _submit(url, LIST_JOBS)
            result |= _list(url, parsed.lists)
            if parsed.submissions > LIST_JOBS:
                result |= _submit(url, parsed.submissions - LIST_JOBS)
                result["submissions"] = parsed.submissions
            _, page = _Client(url).ask("GET", "/v1/jobs?state=queued&limit=1")
            result |= _streams(url, page["jobs"][0]["job_id"], parsed.streams)
            _Client(url).ask("POST", f"/v1/jobs/{running['job_id']}/stop")
        _end_job(directory, running["job_id"])
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
