"""The page of a job, as one JSON document and as one self-contained HTML file.

The document is made from a manifest, from the report of an aborted job or of a plan, or, before
these exist, from the answers of a service.
"""

from __future__ import annotations

import base64
import hashlib
import html as markup
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Any, Final

import numpy as np

from dsort.data.columns import Int64s
from dsort.errors import InputError, InvariantError
from dsort.model.job import JobOut
from dsort.order.mixing_counts import BINS_MAX, counts_in_input_order, judged_table
from dsort.results.layout import manifest_name
from dsort.results.reporter import Timeline
from dsort.storage.registry import scheme_of

SHARDS_SHOWN: Final = 2000
BARS_MAX: Final = 24
"""The most bars of a histogram."""
WEB: Final = ("web", "static")
FRAME, PARTS = "report.html", "report_files.txt"
IMPORT_OR_EXPORT: Final = re.compile(r"^(?:import [^;]*;\n|export )", re.MULTILINE)
PLACEHOLDER: Final = re.compile(r"\{\{(title|style|scripts|page|csp)\}\}")
BREAKING: Final = re.compile(r"</(script|style)|<!--", re.IGNORECASE)
"""Texts that would end a script or a style element early."""

Page = dict[str, Any]
"""The document. ``job`` is a ``JobOut`` with spec and result. Fields that only a service has are
null, and so are unknown figures. ``shards`` has rows (name, records, file bytes) of the first
``SHARDS_SHOWN`` shards, and the spread of all known sizes and numbers of records."""


def page_of_manifest(
    manifest: Mapping[str, Any],
    *,
    job_view: Mapping[str, Any] | None = None,
    output_uri: str = "",
    warnings: Sequence[Mapping[str, Any]] | None = None,
) -> Page:
    """The page of a finished job. ``job_view``: the job's fields at a service; by default, the
    fields that follow from the manifest. ``output_uri``: the present bucket of the result.
    ``warnings``: the job's warnings. ``InputError`` if ``manifest`` is no manifest of a job.
    """
    with _refusing_strangers("manifest"):
        inputs, outputs, totals = manifest["inputs"], manifest["outputs"], manifest["totals"]
        input_bytes = sum(each["bytes"] for each in inputs)
        view = job_view or _view_of_manifest(manifest, output_uri)
        known = {
            "extract": (len(inputs), sum(each["records"] for each in inputs), input_bytes),
            "create": (len(outputs), totals["records"], totals["file_bytes"]),
        }
        return {
            "title": _title(view),
            "job": dict(view),
            "phases": view.get("phases") or _phases(manifest["phase_seconds"], known),
            "timeline": manifest.get("timeline") or [],
            "inputs": {"total": len(inputs), "bytes": input_bytes},
            "shards": _shards(outputs),
            "warnings": _reactions(manifest["reactions"]) if warnings is None else list(warnings),
            "mixing": _mixing(manifest.get("mixing")),
        }


def page_of_report(
    report: Mapping[str, Any],
    *,
    job_view: Mapping[str, Any] | None = None,
    output_uri: str = "",
    warnings: Sequence[Mapping[str, Any]] | None = None,
) -> Page:
    """The page of an aborted job (``report.json``) or of a plan, from the report in JSON types.
    ``InputError`` if ``report`` is something else."""
    with _refusing_strangers("report"):
        view = job_view or _view_of_report(report, output_uri)
        inputs = report.get("resume", {}).get("inputs")
        input_bytes = None if inputs is None else sum(each[1] for each in inputs)
        planned = report.get("shards", ())
        shards = _shards(planned)
        shards["total"] = report.get("shards_total") or shards["total"]
        shards["total"] = shards["total"] or report.get("output_shards", 0)
        if warnings is None:
            texts = [{"kind": "warning", "text": text} for text in report["warnings"]]
            warnings = texts or _reactions(report["reactions"])
        return {
            "title": _title(view),
            "job": dict(view),
            "phases": view.get("phases") or _phases(report.get("phase_seconds", {}), {}),
            "timeline": [list(each) for each in report.get("timeline", ())],
            "inputs": {"total": report["input_shards"], "bytes": input_bytes},
            "shards": shards,
            "warnings": list(warnings),
            "mixing": _mixing(report.get("mixing")),
        }


def page_of_job(
    job_view: Mapping[str, Any],
    samples: Iterable[Mapping[str, Any]] = (),
    *,
    warnings: Sequence[Mapping[str, Any]] | None = None,
) -> Page:
    """The page of a service's job without a manifest: queued, running, failed, or a plan.
    ``samples``: reports of the job's progress, each with the time ``at`` in seconds."""
    result = job_view.get("result")
    if result is not None:
        page = page_of_report(result, job_view=job_view, warnings=warnings)
        page["timeline"] = page["timeline"] or _timeline(samples)
        return page
    return {
        "title": _title(job_view),
        "job": dict(job_view),
        "phases": list(job_view.get("phases") or ()),
        "timeline": _timeline(samples),
        "inputs": {"total": 0, "bytes": None},
        "shards": _shards(()),
        "warnings": list(warnings or ()),
        "mixing": None,
    }


# -- as HTML -------------------------------------------------------------------------------------


def html(page: Mapping[str, Any]) -> str:
    """The page as one HTML file. The file has the style, the scripts and the document, and loads
    nothing. Its content security policy allows nothing else."""
    style, scripts = _parts()
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(scripts)}; "
        "base-uri 'none'; form-action 'none'"
    )
    title = str(page["title"]).encode("utf-8", "replace").decode()
    filling = {
        "title": markup.escape(title),
        "style": style,
        "scripts": scripts,
        "page": _embedded(page),
        "csp": markup.escape(policy, quote=False),
    }
    # All placeholders are replaced in one pass, so that a placeholder in the text of a spec stays.
    return PLACEHOLDER.sub(lambda found: filling[found[1]], _web_file(FRAME))


def _embedded(page: Mapping[str, Any]) -> str:
    """JSON for a script element: ASCII without ``<``, ``>`` and ``&``. ASCII has no line separators
    and no surrogates."""
    try:
        text = json.dumps(page, separators=(",", ":"), allow_nan=False)
    except ValueError as error:  # an edited manifest
        raise InputError(f"the values of the job cannot be shown: {error}") from error
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _parts() -> tuple[str, str]:
    """(style, scripts), each joined from the files that are listed for it. The scripts become one
    module, without imports and exports, because all names are in one scope."""
    lines = (line.strip() for line in _web_file(PARTS).splitlines())
    names = [line for line in lines if line and not line.startswith("#")]
    style = "\n".join(_web_file(name) for name in names if name.endswith(".css"))
    modules = (_web_file(name) for name in names if name.endswith(".js"))
    scripts = "\n".join(IMPORT_OR_EXPORT.sub("", module) for module in modules)
    for text in (style, scripts):
        if found := BREAKING.search(text):
            raise InvariantError(f"the files of a report have {found[0]} in them")
    return style, scripts


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _web_file(name: str) -> str:
    return resources.files("dsort").joinpath(*WEB, name).read_text("utf-8")


# -- its parts -----------------------------------------------------------------------------------


@contextmanager
def _refusing_strangers(what: str) -> Iterator[None]:
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:
        raise InputError(
            f"this is no {what} of a dsort job: {error} is missing or of another type"
        ) from error


def _title(view: Mapping[str, Any]) -> str:
    return view.get("description") or f"Job {view['job_id']}"


def _view(**known: Any) -> dict[str, Any]:
    """A job with the fields that are known without a service."""
    return {
        **dict.fromkeys(JobOut.model_fields),
        "kind": "run",
        "stopping": False,
        "labels": [],
        "phases": [],
        "warning_count": 0,
        **known,
    }


def _view_of_manifest(manifest: Mapping[str, Any], output_uri: str) -> dict[str, Any]:
    spec, totals, move = manifest["spec"], manifest["totals"], manifest["move"]
    job_id, seconds = manifest["job_id"], manifest["phase_seconds"]
    ended = datetime.fromisoformat(manifest["created"])
    started = ended - timedelta(seconds=sum(seconds.values()))
    where = output_uri or _bucket_uri(spec["output_bck"])
    result = {
        "job_id": job_id,
        "state": "finished",
        "output_uri": where,
        "manifest_name": manifest_name(job_id),
        "move": move.get("way"),
        "move_reason": move.get("reason"),
        "workers": move.get("workers"),
        **totals,
        "seed": spec["algorithm"].get("seed"),
        "phase_seconds": seconds,
        "reactions": manifest["reactions"],
        "error": None,
    }
    return _view(
        job_id=job_id,
        state="finished",
        description=spec.get("description") or None,
        input_uri=_input_uri(spec),
        output_uri=where,
        started_at=_rfc3339(started),
        ended_at=_rfc3339(ended),
        exit_code=0,
        spec=spec,
        result=result,
    )


def _view_of_report(report: Mapping[str, Any], output_uri: str) -> dict[str, Any]:
    """The job from a report; its field ``resume``, if present, holds the spec."""
    spec = report.get("resume", {}).get("accepted", {}).get("spec")
    is_plan, error = "shards" in report, report.get("error")
    problem = {"title": "Aborted", "detail": error, "hint": ""}
    result = {key: report[key] for key in report if key not in ("resume", "timeline", "mixing")}
    result.pop("shards", None)
    return _view(
        job_id=report["job_id"],
        kind="plan" if is_plan else "run",
        state="failed" if error else "finished",
        description=(spec or {}).get("description") or None,
        input_uri=_input_uri(spec) if spec else None,
        output_uri=output_uri or report.get("output_uri"),
        error=problem if error else None,
        warning_count=len(report["warnings"]),
        spec=spec,
        result=result,
    )


def _input_uri(spec: Mapping[str, Any]) -> str:
    """The buckets that a spec reads, as one text."""
    buckets = [each["input_bck"] for each in spec.get("inputs") or (spec,)]
    return ", ".join(dict.fromkeys(map(_bucket_uri, buckets)))


def _bucket_uri(value: str | Mapping[str, str]) -> str:
    """A bucket of a spec, as one text."""
    if isinstance(value, str):
        return value
    provider = value["provider"]
    place = "/".join(filter(None, (value["name"], value.get("prefix"))))
    return f"{scheme_of(provider) or provider}://{place}"


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _phases(
    seconds: Mapping[str, float], known: Mapping[str, tuple[int, int, int]]
) -> list[dict[str, Any]]:
    """``known``: (shards, records, bytes) of a phase."""
    rows = []
    for phase, took_s in seconds.items():
        shards, records, size_bytes = known.get(phase, (None, None, None))
        rows.append(
            {
                "phase": phase,
                "seconds": took_s,
                "shards": shards,
                "records": records,
                "bytes": size_bytes,
            }
        )
    return rows


def _shards(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    shown = shards[:SHARDS_SHOWN]
    rows = [[each["name"], each["records"], each["file_bytes"]] for each in shown]
    return {
        "total": len(shards),
        "rows": rows,
        "sizes": _spread([each["file_bytes"] for each in shards]),
        "records": _spread([each["records"] for each in shards]),
    }


def _spread(values: Sequence[int | None]) -> dict[str, Any] | None:
    """The smallest, the median and the largest of ``values``, and how many of them lie in each of
    some equal ranges. None if all values are None."""
    known = [int(value) for value in values if value is not None]
    if not known:
        return None
    smallest, largest = min(known), max(known)
    bars = min(BARS_MAX, largest - smallest + 1)
    floats = np.array(known, np.float64)
    counts = np.histogram(floats, bars)[0].tolist() if bars > 1 else [len(known)]
    middle = sorted(known)[len(known) // 2]
    return {"smallest": smallest, "median": middle, "largest": largest, "counts": counts}


def _reactions(reactions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"kind": each["kind"], "count": each["count"], "samples": list(each["samples"])}
        for each in reactions
    ]


def _mixing(mixing: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Add ``before`` and ``cells``, which follow from the stored counts."""
    if mixing is None:
        return None
    counts = np.array(mixing["counts"], np.int64)
    before = counts_in_input_order(counts.sum(axis=1), counts.sum(axis=0))
    return {**mixing, "before": before.tolist(), "cells": _cells(mixing, counts, before)}


def _cells(
    mixing: Mapping[str, Any], counts: Int64s, before: Int64s
) -> dict[str, list[list[int]]] | None:
    """The counts that the chi-squared test compares, and the shards of each row and column; None
    without a test."""
    # The test of a larger table takes too long.
    judged = judged_table(counts) if max(counts.shape) <= BINS_MAX else None
    if judged is None:
        return None
    shards, outputs = int(mixing["input_shards"]), int(mixing["output_shards"])
    bins, width = len(counts), int(mixing["output_bin_shards"])
    # Input bin b begins with shard ceil(b * shards / bins), output bin o with shard o * width.
    inputs = [
        [-(-first * shards // bins), -(-(last + 1) * shards // bins) - 1]
        for first, last in judged.input_bins.tolist()
    ]
    return {
        "inputs": inputs,
        "outputs": [
            [first * width, min((last + 1) * width, outputs) - 1]
            for first, last in judged.output_bins.tolist()
        ],
        "counts": judged.cells.tolist(),
        "before": judged.folded(before).tolist(),
    }


def _timeline(samples: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """The timeline of samples of progress. A sample has the time ``at``, and ``elapsed_s`` since
    its phase began."""
    timeline = Timeline()
    began_s: float | None = None
    latest_s, current = 0.0, None
    for each in samples:
        phase, at_s = each["phase"], float(each["at"])
        phase_began_s = at_s - float(each["elapsed_s"])
        began_s = phase_began_s if began_s is None else began_s
        if phase != current:
            latest_s = max(phase_began_s - began_s, latest_s)
            timeline.begin(phase, latest_s)
            current = phase
        latest_s = max(at_s - began_s, latest_s)
        timeline.note(phase, latest_s, int(each["bytes_done"]))
    return [list(each) for each in timeline.samples()]
