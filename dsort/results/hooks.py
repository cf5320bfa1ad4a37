"""Hooks: how a job reports its end. A webhook receives JSON; a command receives the JSON on its
standard input.

Commands are named in a spec and defined where the job runs (``[commands]`` in the user's own
settings), so that a spec cannot choose the program that runs. Commands run without a shell.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import IO, Any
from urllib.parse import urlsplit

from dsort.errors import DsortError, SpecProblem
from dsort.naming.names import closest
from dsort.results.report import JobReport
from dsort.sizes import format_count
from dsort.spec.model import JobSpec
from dsort.spec.outputs import Hook
from dsort.storage.guarded_http import RefusedConnectionError, web_opener
from dsort.storage.network_policy import FetchPolicy
from dsort.user_code.process import outside_environment

WEBHOOK_ANSWER_S_MAX = 10.0  # of each read
WEBHOOK_S_MAX = 20.0
COMMAND_S_MAX = 60.0
ERROR_BYTES_SHOWN = 300
TEXT_CHARS_MAX = 1000


def hooks_of(on_success: Hook | None, on_failure: Hook | None) -> dict[str, dict[str, str]]:
    """The hooks that are set, in JSON types: ``{"on_failure": {"webhook": ...}}``."""
    given = {"on_success": on_success, "on_failure": on_failure}
    return {name: hook.called for name, hook in given.items() if hook}


def unknown_commands(spec: JobSpec, commands: Mapping[str, Sequence[str]]) -> list[SpecProblem]:
    """The problems of the hooks of a spec: commands that are not defined here."""
    problems = []
    for name, hook in hooks_of(spec.on_success, spec.on_failure).items():
        if "command" not in hook or hook["command"] in commands:
            continue
        command = hook["command"]
        near = closest(command, commands)
        known = f"known: {', '.join(sorted(commands))}" if commands else "none is defined here"
        hint = f'did you mean "{near}"?' if near else f"{known}; settings define them in [commands]"
        message = f'"{command}" is no command that may be called here'
        problems.append(SpecProblem(f"{name}.command", message, hint))
    return problems


def job_notice(spec: JobSpec, job_id: str, end: JobReport | DsortError) -> dict[str, Any]:
    """The JSON that a hook receives about a job that finished with a report or failed with an
    error. ``text`` is one sentence, which chat servers show."""
    notice: dict[str, Any] = {
        "job_id": job_id,
        "description": spec.description,
        "input": spec.input_uri,
        "output": spec.output_bck.uri,
    }
    if isinstance(end, JobReport):
        done = {"records": end.records, "shards": end.output_shards}
        records = format_count(end.records, "record")
        text = f"dsort job {job_id} finished: {records} to {end.output_uri}"
        return {**notice, **done, "event": "job.finished", "state": "finished", "text": text}
    failed = {"detail": str(end), "hint": end.hint}
    text = f"dsort job {job_id} failed: {end}"[:TEXT_CHARS_MAX]
    return {**notice, "event": "job.failed", "state": "failed", "text": text, "error": failed}


def call_hook(
    hook: Mapping[str, str],
    notice: Mapping[str, Any],
    *,
    commands: Mapping[str, Sequence[str]],
    policy: FetchPolicy | None = None,
) -> list[str]:
    """Call the targets of a hook (see ``Hook.called``); return the reasons of all failures."""
    failures = []
    if "webhook" in hook:
        failures.append(call_webhook(hook["webhook"], notice, policy=policy))
    if "command" in hook:
        arguments = commands.get(hook["command"])
        failures.append(
            call_command(hook["command"], arguments, notice)
            if arguments
            else f"the command {hook['command']} is not defined here"
        )
    return [failure for failure in failures if failure]


def call_webhook(
    url: str,
    notice: Mapping[str, Any],
    *,
    policy: FetchPolicy | None = None,
    seconds_max: float = WEBHOOK_S_MAX,
) -> str:
    """POST ``notice`` as JSON to ``url``; return the reason of a failure, "" on success.
    Redirections are not followed, because only the author of the hook decides which server receives
    notices."""
    answers: list[str] = []
    ends_s = time.monotonic() + seconds_max

    def post() -> None:
        answer = _post(url, notice, policy, seconds_max)
        if time.monotonic() < ends_s:  # later, a connection that was cut looks like a success
            answers.append(answer)

    # In a thread: a server that sends byte by byte never exceeds a time-out of each read.
    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    thread.join(seconds_max)
    return answers[0] if answers else f"{shown_webhook(url)} took longer than {seconds_max:g} s"


def _post(
    url: str, notice: Mapping[str, Any], policy: FetchPolicy | None, seconds_max: float
) -> str:
    body = json.dumps(notice).encode()
    headers = {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")
        opener = web_opener(policy, redirects=False, seconds_max=seconds_max)
        with opener.open(request, timeout=WEBHOOK_ANSWER_S_MAX):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"{shown_webhook(url)} answered {error.code} ({error.reason})"
    except RefusedConnectionError as error:
        return f"webhooks may not be sent to {error}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return f"cannot reach {shown_webhook(url)}: {reason or type(reason).__name__}"


def call_command(
    name: str,
    arguments: Sequence[str],
    notice: Mapping[str, Any],
    *,
    seconds_max: float = COMMAND_S_MAX,
) -> str:
    """Run a command with ``notice`` as JSON on its input, and the main values in ``DSORT_*``
    variables; return the reason of a failure, "" on success."""
    environment = outside_environment()
    for key in ("event", "job_id", "state", "text", "schedule"):
        environment[f"DSORT_{key.upper()}"] = str(notice.get(key) or "").replace("\0", "")
    try:
        # Files, not pipes: a process that the command leaves behind would keep a pipe open, and a
        # command that reads nothing would block the writer.
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as stdin:
            stdin.write(json.dumps(notice).encode())
            stdin.seek(0)
            process = subprocess.Popen(
                list(arguments),
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env=environment,
                start_new_session=True,  # so that processes that it starts can be ended with it
            )
            try:
                exit_code = process.wait(seconds_max)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return f"the command {name} took longer than {seconds_max:.0f} s, and was ended"
            if exit_code:
                return f"the command {name} ended with {exit_code}{_last_line(said)}"
    except (OSError, ValueError) as error:
        return f"the command {name} cannot be run: {error}"
    return ""


def _last_line(said: IO[bytes]) -> str:
    size_bytes = said.seek(0, os.SEEK_END)
    said.seek(max(size_bytes - ERROR_BYTES_SHOWN, 0))
    lines = said.read().decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""


def shown_webhook(url: str) -> str:
    """The server of a webhook; the rest of the URL is often a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/…"


def redacted_hook(hook: Mapping[str, str]) -> dict[str, str]:
    """A hook as everyone may see it."""
    return {
        name: shown_webhook(value) if name == "webhook" else value for name, value in hook.items()
    }
