"""What a service says is wrong becomes the error that the library itself would have raised, and
what is wrong with the way to it is reported in words."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from dsort import errors
from dsort.cli import exits
from dsort.client import DsortClient, Patience, calls
from dsort.client.transport import Transport, checked_url
from dsort.client.values import error_of
from dsort.errors import (
    ConflictError,
    DsortError,
    ForbiddenError,
    InputError,
    JobStoppedError,
    NotFoundError,
    ServiceError,
    SpecError,
    SpecProblem,
    StorageError,
    TooManyRequestsError,
    UnauthorizedError,
)
from dsort.service.problems import problem_of
from tests.support.refusals import raises

URL = "http://service.test"
JOBS = calls.list_jobs()
Handler = Callable[[httpx.Request], httpx.Response]


def answering(*answers: httpx.Response | Exception) -> tuple[Handler, list[httpx.Request]]:
    """A service that gives these answers, one after the other, the last one again and again."""
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        answer = answers[min(len(seen), len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return handle, seen


def transport(
    handle: Handler, slept: list[float] | None = None, url: str = URL, **patience: Any
) -> Transport:
    return Transport(
        url,
        "secret-token",
        timeout_s=5,
        verify=True,
        patience=Patience(**patience),
        http=httpx.MockTransport(handle),
        sleep=(slept if slept is not None else []).append,
        uniform=longest,
    )


def longest(low: float, high: float) -> float:
    assert low <= high
    return high


def problem(kind: str, status: int, **more: Any) -> httpx.Response:
    document = {"type": f"urn:dsort:problem:{kind}", "title": "T", "status": status, **more}
    return httpx.Response(status, json=document)


# --- problem documents ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        SpecError([SpecProblem("a", "is wrong", "write b"), SpecProblem("c", "too")]),
        SpecError("one thing", hint="do another"),
        errors.MissingShardError("no shard", hint="look"),
        errors.JobConflictError("another has it"),
        errors.StorageFullError("full"),
        errors.WorkerLostError("they die"),
        errors.InvariantError("a bug"),
        NotFoundError("no job", hint="list them"),
        ConflictError("it runs"),
        UnauthorizedError("no token"),
        ForbiddenError("a viewer"),
        errors.TooLargeError("too large"),
        TooManyRequestsError("slower", retry_after_s=7.0),
        JobStoppedError("by SIGTERM", signal_number=15),
    ],
)
def test_an_error_comes_back_as_what_it_was(error: DsortError) -> None:
    back = error_of(problem_of(error))
    assert (type(back), back.message, back.hint) == (type(error), error.message, error.hint)
    assert exits.exit_code(back) == exits.exit_code(error)
    assert getattr(back, "problems", ()) == getattr(error, "problems", ())
    assert getattr(back, "retry_after_s", None) == getattr(error, "retry_after_s", None)


@pytest.mark.parametrize(
    ("error", "back"),
    [
        (errors.CorruptShardError("a.tar", 512, "cut off"), InputError),
        (errors.ScratchLostError("x", "gone"), errors.WorkerLostError),
    ],
)
def test_errors_with_more_to_them_keep_message_and_exit_code(
    error: DsortError, back: type[DsortError]
) -> None:
    found = error_of(problem_of(error))
    assert (type(found), found.message) == (back, error.message)
    assert found.exit_code == error.exit_code


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"type": "urn:dsort:problem:moonstruck", "exit_code": 3, "status": 422}, InputError),
        ({"type": "urn:dsort:problem:moonstruck", "exit_code": 4, "status": 500}, StorageError),
        ({"type": "about:blank", "status": 403}, ForbiddenError),
        ({"type": "urn:dsort:problem:request", "status": 400, "exit_code": 2}, SpecError),
        ({"type": "about:blank", "status": 418, "title": "a teapot"}, ServiceError),
        ({"type": 3, "exit_code": "x", "problems": "y", "status": None}, ServiceError),
    ],
)
def test_a_kind_of_a_newer_service_is_recognized_by_its_exit_code_or_status(
    document: dict[str, Any], kind: type[DsortError]
) -> None:
    assert type(error_of(document)) is kind


# --- no answer, or none of ours ------------------------------------------------------------------


def failing(error: Exception) -> DsortError:
    handle, _ = answering(error)
    with pytest.raises(DsortError) as raised:
        transport(handle, attempts=1).call(JOBS)
    return raised.value


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("failure", "named", "hint"),
    [
        (httpx.ConnectError("[Errno 111] Connection refused"), "refused", "`dsort serve`"),
        (httpx.ConnectTimeout("slow"), URL, "`dsort serve`"),
        (httpx.ReadTimeout("slow"), "5 s", ""),
        (httpx.RemoteProtocolError("cut off"), "cut off", "https://"),
        (
            caused(httpx.ConnectError("x"), ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong")),
            "TLS",
            "",
        ),
    ],
)
def test_a_service_that_does_not_answer_is_reported_in_words(
    failure: Exception, named: str, hint: str
) -> None:
    error = failing(failure)
    assert type(error) is ServiceError
    assert named in error.message
    assert hint in error.hint
    assert "secret-token" not in f"{error.message} {error.hint}"


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (httpx.Response(200, html="<p>hello</p>"), "200 with text/html"),
        (httpx.Response(404, html="<p>nothing</p>"), "404 with text/html"),
        (httpx.Response(308, headers={"Location": "https://b.test/"}), "https://b"),
        (httpx.Response(503, text="upstream"), "503"),
        (httpx.Response(401, html="<p>log in</p>"), "401"),
        (httpx.Response(200, json={"jobs": "none"}), "jobs"),
    ],
)
def test_what_is_no_service_of_ours_is_reported_in_words(
    answer: httpx.Response, named: str
) -> None:
    handle, _ = answering(answer)
    with (
        DsortClient(URL, patience=Patience(attempts=1), http=httpx.MockTransport(handle)) as client,
        pytest.raises(ServiceError) as raised,
    ):
        list(client.list())
    assert named in raised.value.message


@pytest.mark.parametrize(
    "text",
    ["service.test:8080", "ftp://service.test", "http://", "https://alice:secret@service.test"],
)
def test_an_unreadable_address_is_refused(text: str) -> None:
    with raises(SpecError) as raised:
        checked_url(text)
    assert "secret" not in str(raised.value)


def test_an_address_may_have_a_path() -> None:
    assert checked_url(" https://a.test/dsort/ ") == "https://a.test/dsort"
    assert checked_url("http://[::1]:8080/v1") == "http://[::1]:8080"
    handle, seen = answering(httpx.Response(200, json={}))
    transport(handle, url="https://a.test/dsort/v1/").call(calls.schema())
    assert str(seen[0].url) == "https://a.test/dsort/v1/schema"


# --- trying again --------------------------------------------------------------------------------


GOOD = httpx.Response(200, json={"fine": True})
REFUSED = httpx.ConnectError("refused")
BAD_TLS = caused(httpx.ConnectError("x"), ssl.SSLError("bad certificate"))


def limited(after: str | None) -> httpx.Response:
    headers = {} if after is None else {"Retry-After": after}
    document = {"type": "urn:dsort:problem:too_many_requests", "detail": "slower", "status": 429}
    return httpx.Response(429, headers=headers, json={**document, "retry_after_s": 3.0})


@pytest.mark.parametrize(
    ("call", "answers", "slept"),
    [
        (JOBS, [httpx.ReadError("reset"), httpx.Response(502), GOOD], [0.2, 0.4]),
        (calls.remove("x"), [REFUSED, GOOD], [0.2]),  # it never arrived
        (calls.retry("x"), [limited("5"), GOOD], [5.0]),
        (calls.retry("x"), [limited(None), GOOD], [3.0]),
        (calls.retry("x"), [limited("0"), GOOD], [0.2]),
    ],
)
def test_a_request_is_sent_again_where_that_does_no_harm(
    call: Any, answers: list[Any], slept: list[float]
) -> None:
    handle, seen = answering(*answers)
    found: list[float] = []
    assert transport(handle, found).request(call) is GOOD
    assert (len(seen), found) == (len(answers), slept)


@pytest.mark.parametrize(
    ("call", "answer", "slept"),
    [
        (calls.retry("x"), httpx.ReadError("reset"), []),  # it may have been carried out
        (calls.retry("x"), httpx.Response(502), []),
        (JOBS, BAD_TLS, []),
        (JOBS, REFUSED, [0.2, 0.4]),
        (JOBS, limited("3600"), []),
    ],
)
def test_patience_ends(call: Any, answer: Any, slept: list[float]) -> None:
    handle, seen = answering(answer)
    found: list[float] = []
    with pytest.raises(ServiceError):
        transport(handle, found, attempts=3).request(call)
    assert (len(seen), found) == (len(slept) + 1, slept)


def test_a_service_may_name_the_time_to_come_back() -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    handle, _ = answering(limited(then), GOOD)
    slept: list[float] = []
    transport(handle, slept).request(calls.retry("x"))
    assert 15 < slept[0] <= 20


def test_a_wait_is_reported_with_its_reason() -> None:
    handle, _ = answering(limited("5"), GOOD)
    said: list[str] = []
    waiting = transport(handle)
    waiting._on_wait = said.append
    waiting.request(JOBS)
    assert said == ["slower; trying again in 5 s"]


# --- who we are ----------------------------------------------------------------------------------


def authorization(monkeypatch: pytest.MonkeyPatch, **options: Any) -> str | None:
    handle, seen = answering(httpx.Response(200, json={}))
    with DsortClient(URL, http=httpx.MockTransport(handle), **options) as client:
        client.schema()
    return seen[0].headers.get("authorization")


def test_the_token_is_where_it_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DSORT_TOKEN", "DSORT_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    ours, other = tmp_path / "token", tmp_path / "other"
    ours.write_text("from-file\n")
    other.write_text("from-other\n")
    assert authorization(monkeypatch) is None
    monkeypatch.setenv("DSORT_TOKEN_FILE", str(other))
    assert authorization(monkeypatch) == "Bearer from-other"
    monkeypatch.setenv("DSORT_TOKEN", "from-variable")
    assert authorization(monkeypatch) == "Bearer from-variable"
    assert authorization(monkeypatch, token_file=ours) == "Bearer from-file"
    assert authorization(monkeypatch, token="given", token_file=ours) == "Bearer given"


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"two words", "tok€n".encode()])
def test_a_token_that_cannot_be_one_is_not_shown(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError) as raised:
        DsortClient(URL, token_file=path)
    assert "two words" not in raised.value.message
    assert "tok€n" not in raised.value.message


def test_a_service_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSORT_SERVER", raising=False)
    with raises(SpecError):
        DsortClient()
    monkeypatch.setenv("DSORT_SERVER", "http://other.test/")
    with DsortClient() as client:
        assert client.url == "http://other.test"


def test_certificates_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    with raises(SpecError, "none.pem"):
        DsortClient("https://service.test", verify=tmp_path / "none.pem")


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (calls.put_transform("a", {}), httpx.Response(200, html="<p>hello</p>")),
        (calls.put_transform("a", {}), httpx.Response(201, json=[1])),
        (calls.report("x"), httpx.Response(200, content=b"null")),
        (calls.report("x"), httpx.Response(200, json={"move_reason": "", "estimate": 1})),
        (calls.get("x"), httpx.Response(200, content=b"[" * 200_000)),
        (calls.get("x"), httpx.Response(400, content=b"[" * 200_000)),
        (calls.get("x"), httpx.Response(503, headers=[(b"Retry-After", b"\xb2")])),
        (calls.get("x"), limited("Wed, 21 Oct 2015 07:28:00 -0000")),
        (calls.get("x"), httpx.Response(429, json={"type": "x", "retry_after_s": 10**400})),
    ],
)
def test_whatever_answers_the_error_is_one_of_ours(call: Any, answer: httpx.Response) -> None:
    handle, _ = answering(answer)
    with pytest.raises(ServiceError):
        transport(handle, attempts=2).call(call)


def test_an_answer_that_cannot_be_decompressed_is_an_error_of_ours() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        encoded = {"Content-Encoding": "gzip"}
        return httpx.Response(200, headers=encoded, stream=httpx.ByteStream(b"no gzip"))

    with pytest.raises(ServiceError):
        transport(handle, attempts=1).call(calls.get("x"))


@pytest.mark.parametrize("call", [JOBS, calls.list_objects("images"), calls.list_transforms()])
def test_a_list_whose_pages_do_not_go_on_ends(call: Any) -> None:
    empty = {"jobs": [], "objects": [], "transforms": [], "next_cursor": "7"}
    handle, seen = answering(httpx.Response(200, json=empty))
    with raises(ServiceError):
        list(transport(handle).pages(call))
    assert len(seen) == 2
