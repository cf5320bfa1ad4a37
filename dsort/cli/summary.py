"""Reports as texts: the progress of a phase, in lines, bars and ``dsort show``; and the end of a
job, a plan or a check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dsort.cli import output
from dsort.order.algorithms import is_random
from dsort.order.mixing import mixing_line

if TYPE_CHECKING:
    from dsort.client import JobProgress
    from dsort.results.report import (
        JobReport,
        JobStarted,
        OutputCount,
        PhaseDone,
        PlanEstimate,
        Progress,
        ReactionCount,
        ReaderCounts,
        RecordFlow,
    )
    from dsort.verification.findings import SampleReport, VerifyReport

Shard = TypeVar("Shard")
SHARDS_SHOWN = 10
KINDS_A_ROW, MOVES_A_ROW = 3, 2
SAMPLES_SHOWN = 3
READERS_SHOWN = 8
SKIPPED: Final[Mapping[str, str]] = {
    "clutter_files": "for people or file managers (README.txt, Thumbs.db)",
    "hidden_files": "hidden",
    "other_files": "with another extension or name than asked for",
    "unusable_files": "that cannot be members",
    "unlisted_files": "in no row of metadata",
}
"""The reason why a loose file does not become a member, by the kind under which it is counted."""


def job(report: JobReport, *, show_all: bool = False) -> str:
    """The work of a job and the place of its result; for a plan, the work that the job would do."""
    if report.plan is not None:
        head = output.fields([("plan", "nothing was written"), *figures(report)])
        return "\n\n".join(part for part in (head, planned_shards(report, show_all)) if part)
    took_s = sum(report.run.phase_seconds.values())
    return output.fields(
        [
            ("job", f"{report.job_id} {report.state} in {output.duration(took_s)}"),
            ("result", output.printable(output.place(report.output_uri))),
            *figures(report),
        ]
    )


def figures(report: JobReport) -> list[tuple[str, str]]:
    """The figures of a job or of a plan."""
    totals, run, order, plan = report.totals, report.run, report.order, report.plan
    if plan is None:
        rate = output.rate(totals.file_bytes, sum(run.phase_seconds.values()))
        moved = [("movement", f"{run.move}, {output.count(run.workers, 'worker')}")]
    else:
        rate = ""
        moved = [
            ("movement", f"{run.move}: {plan.move_reason}"),
            ("workers", output.number(run.workers)),
            ("memory", output.size(plan.memory_bytes)),
            ("scratch", output.size(plan.scratch_bytes)),
            *estimate_lines(plan.estimate),
        ]
    return [
        ("manifest", output.printable(report.manifest_name or "")),
        ("shards", f"{totals.input_shards:,} in, {totals.output_shards:,} out"),
        ("records", records_line(totals.records, totals.members)),
        *flow_lines(order.flow),
        ("bytes", bytes_line(totals.payload_bytes, totals.file_bytes)),
        *output_lines(report.outputs),
        *reader_lines(() if plan is None else plan.readers),
        ("rate", rate),
        ("algorithm", output.printable(order.algorithm)),
        *moved,
        ("seed", order.seed or ""),
        ("skipped", skipped(report.reactions)),
        *reaction_lines(report.reactions),
        ("warnings", _warnings(report.warnings)),
    ]


def flow_lines(flow: RecordFlow | None) -> list[tuple[str, str]]:
    """Records from input to output: the records of each input, and all that were dropped and added;
    empty if there is one input and nothing was dropped or added."""
    if flow is None or (len(flow.read) < 2 and not flow.dropped and not flow.added):
        return []
    read = [f"{count:,} of {name}" if name else f"{count:,}" for name, count in flow.read.items()]
    changed = [
        *(f"- {count:,} {name}" for name, count in sorted(flow.dropped.items())),
        *(f"+ {count:,} {name}" for name, count in sorted(flow.added.items())),
    ]
    head = [("in", output.printable(", ".join(read)))]
    return [*head, *((" ", output.printable(each)) for each in changed), ("out", f"{flow.out:,}")]


def skipped(reactions: Iterable[ReactionCount]) -> str:
    """The number of loose files that became no members, and why; "" if there are none."""
    found = [(each.count, each.kind) for each in reactions if each.kind in SKIPPED]
    why = ", ".join(f"{count:,} {SKIPPED[kind]}" for count, kind in found)
    return f"{output.count(sum(count for count, _ in found), 'file')}: {why}" if found else ""


def mixing(spec: Mapping[str, Any], counts: Mapping[str, Any] | None) -> str:
    """Whether the records were mixed evenly. Only a shuffle is expected to be even."""
    return mixing_line(counts) if counts and is_random(spec["algorithm"]["kind"]) else ""


def estimate_lines(estimate: PlanEstimate | None) -> list[tuple[str, str]]:
    """The estimated amount of data that a job would move."""
    if estimate is None:
        return []
    moved = [
        f"{what} {output.size(size_bytes)}"
        for what, size_bytes in (
            ("disks read", estimate.disk_read_bytes),
            ("disks write", estimate.disk_written_bytes),
            ("stores send", estimate.store_read_bytes),
            ("stores take", estimate.store_written_bytes),
            ("nodes exchange", estimate.exchanged_bytes),
        )
        if size_bytes
    ]
    kinds = [f"{count:,} {kind}" for kind, count in estimate.requests.items() if count]
    asked = f"{sum(estimate.requests.values()):,} to stores" if kinds else ""
    return [
        *_in_rows("moves", moved, MOVES_A_ROW),
        ("requests", asked),
        *_in_rows(" ", kinds, KINDS_A_ROW),
    ]


def _in_rows(name: str, words: Sequence[str], count: int) -> Iterable[tuple[str, str]]:
    """``words`` in several lines, ``count`` in each; only the first line has the name."""
    for at in range(0, len(words), count):
        yield " " if at else name, ", ".join(words[at : at + count])


def verification(report: VerifyReport) -> str:
    """What a check of a result found."""
    verdict = "correct" if report.ok else output.count(report.problem_count, "difference")
    sample = report.sample
    if sample is not None:
        verdict = f"{'no difference' if report.ok else verdict} in a sample"
    head = output.fields(
        [
            ("job", f"{report.job_id}: {verdict}"),
            ("result", output.printable(output.place(report.output_uri))),
            ("shards", f"{report.input_shards:,} in, {report.output_shards:,} out"),
            ("sample", "" if sample is None else _sampled(sample)),
            ("records", records_line(report.records, report.members)),
            ("read", f"{output.size(report.bytes_read)} in {output.duration(report.elapsed_s)}"),
            *(("not checked", each) for each in (sample.not_checked if sample else ())),
            ("warnings", _warnings(report.warnings)),
        ]
    )
    rows = [
        (each.kind, output.printable(each.shard), output.printable(each.record), each.text)
        for each in report.problems
    ]
    if not rows:
        return head
    found = output.table(("WHAT", "SHARD", "RECORD", "DETAILS"), rows)
    hidden = report.problem_count - len(rows)
    return f"{head}\n\n{found}" + (f"\n... and {hidden:,} more" if hidden else "")


def _sampled(sample: SampleReport) -> str:
    shards = output.count(sample.shards, "output shard")
    return f"{shards} read, {100 * sample.part:g}%, seed {output.printable(sample.seed)}"


def output_lines(outputs: Iterable[OutputCount]) -> list[tuple[str, str]]:
    """The figures of each of several outputs."""
    return [
        (
            f"→ {each.name}",
            f"{output.count(each.records, 'record')} in {output.count(each.shards, 'shard')}, "
            f"{output.size(each.file_bytes)}",
        )
        for each in outputs
    ]


def reader_lines(readers: Iterable[ReaderCounts]) -> list[tuple[str, str]]:
    """The numbers of workers (world size x workers of each) that can read each output evenly."""
    found = []
    for row, each in enumerate(readers):
        shown = [output.number(count) for count in each.workers]
        if len(shown) > READERS_SHOWN:
            half = READERS_SHOWN // 2
            shown = [*shown[:half], "...", *shown[-half:]]
        sizes = output.number(each.records_min)
        if each.records_min < each.records_max:
            sizes += f" to {each.records_max:,}"
        text = f"world size x workers of {', '.join(shown)}; {sizes} records a shard"
        found.append(("readers" if row == 0 else " ", f"{each.output}: {text}".lstrip(": ")))
    return found


def records_line(records: int, members: int) -> str:
    """The number of records, and of the members in them."""
    return f"{records:,}, {output.count(members, 'member')}"


def bytes_line(payload_bytes: int, file_bytes: int) -> str:
    """The stored bytes, and how many of them are payload, without headers and padding."""
    if payload_bytes > file_bytes:  # the shards are compressed
        return f"{output.size(file_bytes)} for {output.size(payload_bytes)} of payload"
    return f"{output.size(file_bytes)}, {output.size(payload_bytes)} of them payload"


def reaction_lines(reactions: Iterable[ReactionCount]) -> Iterable[tuple[str, str]]:
    """One field for each kind of reaction; only the first field has a name."""
    for row, each in enumerate(reactions):
        names = ", ".join(output.printable(name) for name in each.samples[:SAMPLES_SHOWN])
        more = ", ..." if each.count > SAMPLES_SHOWN and names else ""
        text = f"{each.count:,} {each.kind}" + (f": {names}{more}" if names else "")
        yield ("oddities" if row == 0 else " ", text)


def _warnings(warnings: Sequence[str]) -> str:
    return f"{len(warnings):,}, shown above" if warnings else ""


def planned_shards(report: JobReport, show_all: bool) -> str:
    """The shards that a job would write, or the first of them; "" for no shards."""
    if not report.shards:
        return ""
    return some_shards(
        ("SHARD", "RECORDS", "PAYLOAD", "SIZE"),
        report.shards,
        lambda each: (
            output.printable(each.name),
            output.number(each.records),
            output.size(each.payload_bytes),
            output.size(each.file_bytes),
        ),
        right="lrrr",
        show_all=show_all,
        lists_all="`dsort plan --all`",
    )


def some_shards(
    header: Sequence[str],
    shards: Sequence[Shard],
    row: Callable[[Shard], Sequence[str]],
    *,
    right: str,
    show_all: bool,
    lists_all: str,
) -> str:
    """A table of shards, or of the first of them, with a ``row`` for each. ``lists_all``: what the
    user types to see all."""
    shown = shards if show_all else shards[:SHARDS_SHOWN]
    text = output.table(header, [row(each) for each in shown], right=right)
    hidden = len(shards) - len(shown)
    more = f"\n... and {output.count(hidden, 'more shard')} ({lists_all} lists them)"
    return text + more * (hidden > 0)


MOVING_PHASES = frozenset({"create", "extract", "generate", "verify"})


def started_text(event: JobStarted) -> str:
    """The first line of a job, and a line with the place where it runs, if that is not this
    machine."""
    return (
        f"job {event.job_id}: {output.count(event.input_shards, 'shard')}, "
        f"{output.size(event.input_bytes)}, {event.move}, {output.count(event.workers, 'worker')}"
        + (f"\n{output.printable(event.where)}" if event.where else "")
    )


def begin_text(event: Progress) -> str:
    """The work of a phase, when it begins."""
    parts = []
    if event.shards_total:
        parts.append(output.count(event.shards_total, "shard"))
    if event.bytes_total:
        parts.append(output.size(event.bytes_total))
    return ", ".join(parts) or "started"


def progress_text(event: Progress | JobProgress) -> str:
    """The progress of a phase, in one line: ``34/100 shards, 1,234 records, 512 MiB, ...``."""
    parts = []
    if event.shards_total:
        parts.append(f"{event.shards_done:,}/{event.shards_total:,} shards")
    if event.records_done:
        parts.append(output.count(event.records_done, "record"))
    if event.bytes_done:
        parts.append(output.size(event.bytes_done))
        parts.append(speed_text(event.phase, event.bytes_done, event.elapsed_s))
    left_s = time_left_s(event)
    if left_s is not None:
        parts.append(f"about {output.duration(left_s)} left")
    return ", ".join(part for part in parts if part) or output.duration(event.elapsed_s)


def done_text(event: PhaseDone) -> str:
    """The work that a phase has done."""
    parts = [output.duration(event.elapsed_s)]
    if event.shards:
        parts.append(output.count(event.shards, "shard"))
    if event.records:
        parts.append(output.count(event.records, "record"))
    if event.bytes:
        parts.append(output.size(event.bytes))
        parts.append(speed_text(event.phase, event.bytes, event.elapsed_s))
    return ", ".join(part for part in parts if part)


def speed_text(phase: str, bytes_done: int, elapsed_s: float) -> str:
    """Bytes a second, for phases that move payload; empty for the others."""
    return output.rate(bytes_done, elapsed_s) if phase in MOVING_PHASES else ""


def time_left_s(event: Progress | JobProgress) -> float | None:
    """Seconds until the job ends at the present rate; None while the rate is not known. Shards are
    created after they are extracted: creating moves as many bytes, and is assumed to be as fast."""
    done, total = event.bytes_done, event.bytes_total
    if not total:
        done, total = event.shards_done, event.shards_total
    if not done or total <= done or event.elapsed_s < 1:
        return None
    behind = total if event.phase == "extract" else 0
    return event.elapsed_s * (total - done + behind) / done
