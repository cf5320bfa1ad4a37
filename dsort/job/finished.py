"""The report of a finished job, made again from its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsort.errors import InputError
from dsort.job.layout import manifest_name
from dsort.job.report import JobReport, Order, Run, Totals, output_counts, reaction_counts
from dsort.job.timeline import Sample
from dsort.order.mixing_counts import mixing_of


def report_of_manifest(manifest: Mapping[str, Any], output_uri: str) -> JobReport:
    """The report of the job that wrote ``manifest``. ``InputError`` if the manifest is damaged."""
    try:
        totals, move, mixing = manifest["totals"], manifest["move"], manifest.get("mixing")
        outputs = output_counts(manifest)
        return JobReport(
            job_id=manifest["job_id"],
            state="finished",
            output_uri=output_uri,
            manifest_name=manifest_name(manifest["job_id"]),
            totals=Totals(**{name: totals[name] for name in Totals.__struct_fields__}),
            run=Run(
                move=move["way"],
                workers=move["workers"],
                phase_seconds=dict(manifest["phase_seconds"]),
                timeline=tuple(Sample(*row) for row in manifest.get("timeline", ())),
            ),
            order=Order(
                seed=manifest["spec"]["algorithm"].get("seed"),
                mixing=None if mixing is None else mixing_of(mixing),
            ),
            reactions=reaction_counts(manifest["reactions"]),
            outputs=outputs if len(outputs) > 1 else (),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the manifest of the job in {output_uri} is damaged: {error}",
            hint="the file may have been edited; `dsort verify` reports more",
        ) from error
