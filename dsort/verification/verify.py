"""``dsort verify``: reads a result and its inputs again, and reports the differences.

Everything is computed anew, from the bytes and from the spec in the manifest, and nothing is taken
from the job's plan or index. Both sides become columns of digests, which are compared. An input
that was written again, and has another etag, is still compared, with a warning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dsort.data.columns import UInt64s
from dsort.data.members import MemberTable
from dsort.data.tally import Tally
from dsort.errors import CorruptShardError, InputError, ObjectNotFoundError
from dsort.job.amend import read_removed
from dsort.job.resolve import files_of
from dsort.job.setup.inputs import resolve_inputs
from dsort.job.setup.new_job import load_keymap, load_steps, output_names
from dsort.job.setup.user_code import CodeAgain, described_steps
from dsort.loose_files.bucket import FilesBucket
from dsort.loose_files.listing import Listing
from dsort.naming.names import first_few
from dsort.options import RunOptions, open_result, open_with_settings
from dsort.pipeline.compile import compile_pipeline, container_options
from dsort.reading.shard_reader import ShardReader
from dsort.result_order import load_places
from dsort.results.earlier_results import Replacement, replacements
from dsort.results.manifest import Manifest, ManifestOutput, parse_manifest
from dsort.results.report import Event
from dsort.stop_flag import StopFlag
from dsort.storage.bucket import Bucket
from dsort.storage.routed import BucketPlace, bucket_named, open_inputs, routed_inputs
from dsort.storage.small_objects import read_small
from dsort.verification.changes import (
    check_classes,
    classes_to_go_on,
    inputs_are_comparable,
    tell_changed_code,
)
from dsort.verification.comparison import Comparison, NamedOutputs
from dsort.verification.findings import (
    Findings,
    ProgressTeller,
    Sample,
    SampleReport,
    VerifyProblem,
    VerifyReport,
)
from dsort.verification.input_table import NOT_COMPARED, InputTable
from dsort.verification.inputs import InputReader
from dsort.verification.order import OrderWatch, Place, check_cuts
from dsort.verification.outputs import (
    OutputReader,
    OutputTable,
    check_index,
    check_output_names,
    check_totals,
    find_strangers,
    place_outputs,
)
from dsort.verification.plain import RowsAgain, RowsAsTheyAre, rows_have_keys
from dsort.verification.shards import ComparedBytes
from dsort.verification.sidecars import SidecarCheck

INDEX_BYTES_MAX = 4 << 30

BUFFER_BYTES_MAX = 128 << 20
BUFFER_BYTES_MIN = 1 << 20


def verify_result(
    manifest: bytes,
    options: RunOptions,
    *,
    output_uri: str | None,
    max_expansion: float | None,
    run_code: bool,
    sample: float | None,
    seed: str,
    on_event: Callable[[Event], None],
    stop: StopFlag | None,
) -> VerifyReport:
    """Verify the result that ``manifest`` (its bytes) describes.

    ``output_uri``: the place of the result, if it is no longer the place in the spec. The others:
    see ``api.verify``. Of ``options`` only ``root`` and ``settings`` matter. Problems are in the
    report. Raises ``InputError`` (this is no manifest, the key map cannot be read),
    ``TransformError`` (code cannot be loaded), ``StorageError`` and ``JobStoppedError``.
    """
    stored = parse_manifest(manifest)
    where = output_uri or stored.spec.output_bck
    main = open_with_settings(where, root=options.root, settings=options.settings)
    outputs = open_result(stored.spec, main, options)
    replaced = replacements(main, stored)
    if replaced:
        return _report_of_replaced(stored, outputs, replaced)
    if stored.spec.output == "view":
        from dsort.reading.view import open_view  # few results are views

        stored, outputs = open_view(stored, outputs, options)
    taken = Sample.of(1.0 if sample is None else sample, seed or stored.job_id)
    if taken and run_code:
        hint = "leave out either the sample or the code: a sample is not compared with the inputs"
        raise InputError("code is not run again for a sample", hint=hint)
    reports, shared = [], _Shared(stored, taken)
    for part in stored.parts():
        found = _Verification(part, shared, outputs, max_expansion, options, on_event, stop)
        with contextlib.ExitStack() as stack:
            if run_code and found.pipeline.makes_records:
                found.run_code_again(options, stack)
            reports.append(found.run())
    report = reports[0] if len(reports) == 1 else _of_all(stored.job_id, reports)
    if not taken:
        return report
    told = SampleReport(taken.part, taken.seed, len(shared.drawn))
    return replace(report, sample=told)


def _report_of_replaced(
    manifest: Manifest, outputs: Bucket, replaced: Sequence[Replacement]
) -> VerifyReport:
    """The report about a result whose shards were replaced by a later job; they are not
    compared."""
    problems = (VerifyProblem("replaced", each.names[0], "", each.words) for each in replaced)
    return VerifyReport(
        job_id=manifest.job_id,
        output_uri=outputs.uri,
        input_shards=len(manifest.inputs),
        output_shards=len(manifest.outputs),
        problem_count=len(replaced),
        problems=tuple(problems),
    )


def _of_all(job_id: str, reports: Sequence[VerifyReport]) -> VerifyReport:
    """The report about a result that several jobs have made, each job a part of it."""
    sums = ("input_shards", "output_shards", "records", "members", "bytes_read", "elapsed_s")
    return replace(
        reports[-1],
        job_id=job_id,
        problem_count=sum(each.problem_count for each in reports),
        problems=tuple(problem for each in reports for problem in each.problems),
        warnings=tuple(dict.fromkeys(text for each in reports for text in each.warnings)),
        **{name: sum(getattr(each, name) for each in reports) for name in sums},
    )


def _files_there(manifest: Manifest, bucket: Bucket, options: RunOptions) -> FilesBucket:
    """The files that the spec names and that still exist."""
    known = classes_to_go_on(manifest)
    found = files_of(manifest.spec, bucket, options, Tally(), known_classes=known)
    try:
        assert found.listing is not None
    except (InputError, ObjectNotFoundError):
        return FilesBucket(found.buckets, Listing.empty)  # each shard is reported as missing
    return found


class _Shared(Struct, dict=True):
    """Data that the verifications of the parts of a result share. ``whole``: the manifest of the
    result; ``sample``: the shards that are read; ``md5``: of each shard that was read;
    ``key_hashes``: of the records of each part that was read."""

    whole: Manifest
    sample: Sample
    md5: dict[str, str] = field(default_factory=dict)
    key_hashes: list[UInt64s] = field(default_factory=list)

    @cached_property
    def drawn(self) -> frozenset[str]:
        """The names of the output shards to read."""
        return self.sample.drawn([shard.name for shard in self.whole.outputs])


class _Verification:
    """The verification of the part of a result that one job has made, from the manifest to the
    report."""

    def __init__(
        self,
        manifest: Manifest,
        shared: _Shared,
        outputs_bucket: Bucket,
        max_expansion: float | None,
        options: RunOptions,
        on_event: Callable[[Event], None],
        stop: StopFlag | None,
    ) -> None:
        self._manifest = manifest
        self._shared, self._whole = shared, shared.whole
        self._all_names = frozenset(shard.name for shard in self._whole.outputs)
        self._removed = read_removed(outputs_bucket, manifest.history.removed)
        self._outputs_bucket = outputs_bucket
        self._max_expansion = max_expansion
        self._inputs_bucket = self._open_inputs(options)
        self._findings = Findings(manifest.job_id, on_event)
        self._progress = ProgressTeller(manifest.job_id, on_event)
        sizes = [BUFFER_BYTES_MIN, *(shard.bytes for shard in manifest.inputs)]
        sizes += [shard.file_bytes for shard in manifest.outputs]
        self._reader = ShardReader(
            min(max(sizes), BUFFER_BYTES_MAX),
            stop,
            container_options(manifest.spec),
            memory_max_bytes=options.memory_max_bytes,
            needs_schema=False,
        )
        given = load_places(manifest.spec, options) or load_keymap(manifest.spec, Tally())
        inputs = [shard.name for shard in manifest.inputs]
        self._names = output_names(manifest.spec, given, inputs).counted_in(
            [shard.name for shard in manifest.outputs]
        )
        steps = load_steps(manifest.spec, options)
        self.pipeline = compile_pipeline(manifest.spec, steps=steps, placed_by=given)
        self._code: CodeAgain | None = None
        self._known = self._known_keys()

    def _known_keys(self) -> UInt64s:
        """The hashes of the earlier keys of the result, if the job compared its keys with them."""
        are_numbered = all(form.container.numbers_records for form in self.pipeline.outputs)
        if self.pipeline.join or are_numbered:
            return np.zeros(0, np.uint64)
        return np.unique(np.concatenate([np.zeros(0, np.uint64), *self._shared.key_hashes]))

    def _open_inputs(self, options: RunOptions) -> Bucket:
        spec = self._manifest.spec
        if spec.reads_streams:
            return routed_inputs({})
        bucket = open_inputs(
            [BucketPlace(each.name, each.bucket) for each in spec.sources],
            lambda place: open_with_settings(
                place.ref, root=options.root, settings=options.settings
            ),
        )
        return _files_there(self._manifest, bucket, options) if spec.ingest else bucket

    def run_code_again(self, options: RunOptions, stack: contextlib.ExitStack) -> None:
        """Prepare the steps to run the code that the manifest names. ``stack`` ends the code.
        ``TransformError`` if it cannot be loaded."""
        steps = described_steps(self.pipeline.steps, replace(options, runs_code=True))
        self.pipeline = replace(self.pipeline, steps=tuple(steps))
        self._code = CodeAgain(self.pipeline.failures, steps)
        stack.callback(self._code.close)
        tell_changed_code(steps, self._manifest.code, self._findings)

    def run(self) -> VerifyReport:
        """Verify the part and return its report."""
        manifest, findings, progress = self._manifest, self._findings, self._progress
        if manifest.job_id == self._whole.job_id:
            check_totals(self._whole, findings)
        if manifest.spec.checksums and any(not each.sha256 for each in manifest.outputs):
            text = "the manifest lacks SHA-256 checksums, which its spec asks for"
            findings.problem("manifest", "", "", text)
        self._check_input_names()
        places = place_outputs(manifest.outputs, self._names, findings)
        check_output_names(manifest.outputs, places, manifest.spec.output_names, findings)
        self._warn_of_strangers()
        compared = self._compared()
        input_reader, inputs = self._read_inputs(compared)
        is_compared = inputs is not NOT_COMPARED
        output_reader = OutputReader(
            self._outputs_bucket,
            self._reader,
            inputs,
            findings,
            compared,
            self.pipeline.outputs,
            want_md5=manifest.index is not None,
            max_expansion=self._max_expansion,
        )
        repeats_allowed = not manifest.spec.keys_are_unique
        has_keys = all(each.keyed for each in compared)
        algorithm = self.pipeline.placed_by.ordering(manifest.spec.algorithm.build())
        watch = OrderWatch(self.pipeline, algorithm, has_keys=has_keys)
        may_merge = repeats_allowed and not is_compared
        outputs = self._read_outputs(output_reader, places, watch, may_merge=may_merge)
        named = NamedOutputs(outputs, output_reader, findings)
        if not len(self._removed):  # a removal does not move the ends of shards
            check_cuts(outputs.facts, manifest.spec, self._names, findings, self.pipeline.placed_by)
        elif not is_compared:  # the comparison with the inputs reports such records, too
            named.check_removed(self._removed)
        self._shared.md5 |= outputs.md5
        self._shared.key_hashes.append(outputs.key_hash)
        if not repeats_allowed:
            named.check_known_keys(self._known)
        self._check_index()
        if is_compared:
            Comparison(
                manifest.spec, self.pipeline, algorithm, inputs, input_reader, named, findings
            ).check()
        elif not repeats_allowed:
            named.check_unique_keys(np.arange(len(outputs)))
        progress.done()
        return self._report(outputs)

    def _read_inputs(self, compared: Sequence[ComparedBytes]) -> tuple[InputReader, InputTable]:
        """The reader of the inputs, and their records if these can be compared."""
        manifest, findings, whole = self._manifest, self._findings, not self._shared.sample
        comparable = inputs_are_comparable(
            manifest,
            self._inputs_bucket,
            findings,
            has_removed=whole and len(self._removed) > 0,
            needs_code=whole and self.pipeline.makes_records and self._code is None,
        )
        comparable = comparable and whole
        reader = InputReader(
            manifest.spec,
            self.pipeline,
            self._inputs_bucket,
            self._reader,
            compared,
            code=self._code,
            rows=self._rows_again() if comparable else RowsAsTheyAre(),
            max_expansion=self._max_expansion,
            known=self._known,
        )
        self._expect(reader.passes if comparable else 0)
        if not comparable:
            return reader, NOT_COMPARED
        check_classes(manifest, self._inputs_bucket, findings)
        inputs = reader.read(manifest.inputs, findings, self._progress)
        if inputs is not NOT_COMPARED and len(self._removed):
            is_removed = np.isin(inputs.key_hash, self._removed)
            inputs = replace(inputs, expected=inputs.expected & ~is_removed)
        return reader, inputs

    def _read_outputs(
        self,
        reader: OutputReader,
        places: Sequence[Place],
        watch: OrderWatch,
        *,
        may_merge: bool,
    ) -> OutputTable:
        """Read all shards, and compare the sidecars with them meanwhile."""
        sidecars = SidecarCheck(self._manifest, self._whole, self._outputs_bucket, self._findings)
        drawn, is_sample = self._shared.drawn, bool(self._shared.sample)
        undrawn = [shard.name for shard in self._manifest.outputs if shard.name not in drawn]
        sidecars.check_undrawn(undrawn)
        with sidecars.samples() as samples:

            def check_sidecars(ordinal: int, shard: ManifestOutput, members: MemberTable) -> None:
                sidecars.check_shard(shard, members)
                if samples is not None:
                    samples.check_shard(ordinal, shard.name, members)

            outputs = reader.read(
                self._manifest.outputs,
                places,
                watch,
                self._progress,
                drawn=drawn,
                may_merge=may_merge,
                on_shard=check_sidecars,
            )
        sidecars.check_rest(is_sample=is_sample)
        return outputs

    # -- inputs ----------------------------------------------------------------------------------

    def _compared(self) -> list[ComparedBytes]:
        """For each output, the part of its records that is compared."""
        spec, has_keys = self._manifest.spec, False
        if self.pipeline.reads_rows and self.pipeline.writes_rows:
            names = [shard.name for shard in self._manifest.inputs]
            has_keys = rows_have_keys(spec, self._inputs_bucket, names)
        forms = self.pipeline.outputs
        return [
            ComparedBytes.of(self.pipeline, form, spec.key_field, rows_have_keys=has_keys)
            for form in forms
        ]

    def _rows_again(self) -> RowsAsTheyAre:
        """The ``RowsAgain`` of a job whose steps run code on rows."""
        spec, inputs = self._manifest.spec, self._manifest.inputs
        if self._code is None or not self.pipeline.moves_rows:
            return RowsAsTheyAre()
        for shard in inputs:
            with contextlib.suppress(CorruptShardError):
                steps = self.pipeline.steps
                return RowsAgain.of(
                    steps, spec.key_field, self._inputs_bucket, shard.name, self._code
                )
        return RowsAsTheyAre()

    def _expect(self, input_passes: int) -> None:
        """Set the total amount to read. The bytes of the inputs count once: earlier passes read
        headers only."""
        inputs, drawn = self._manifest.inputs, self._shared.drawn
        outputs = [shard for shard in self._manifest.outputs if shard.name in drawn]
        input_bytes = sum(shard.bytes for shard in inputs) if input_passes else 0
        self._progress.expect(
            shards=input_passes * len(inputs) + len(outputs),
            bytes_total=input_bytes + sum(shard.file_bytes for shard in outputs),
        )

    def _check_input_names(self) -> None:
        """Check that the inputs are the shards that the spec names, in its order. The check allows
        for shards that were added after the job."""
        spec = self._manifest.spec
        if spec.reads_streams:
            return
        spec, listed = self._manifest.spec, [shard.name for shard in self._manifest.inputs]
        try:
            found = [shard.name for shard in resolve_inputs(spec, self._inputs_bucket, Tally())]
        except (InputError, ObjectNotFoundError):  # no input is left: each is reported as missing
            return
        ours, there = set(listed), set(found)
        if [name for name in found if name in ours] != [name for name in listed if name in there]:
            text = "the inputs are not in the order that the spec gives them"
            self._findings.problem("manifest", "", "", text)
        results = {
            source.shard_name(name)
            for source in spec.sources
            if not spec.ingest
            and bucket_named(self._inputs_bucket, source.name).uri == self._outputs_bucket.uri
            for name in self._all_names
        }
        more = [name for name in found if name not in ours and name not in results]
        if more:
            text = (
                f"shards that the spec names were no inputs of the job ({len(more):,}): "
                f"{first_few(more)}"
            )
            self._findings.warn("other_inputs", text)

    # -- outputs ---------------------------------------------------------------------------------

    def _warn_of_strangers(self) -> None:
        if self._manifest.spec.keep_shards:
            return  # outputs keep the names of inputs: no template makes further names
        strangers = find_strangers(
            self._all_names,
            (shard.name for shard in self._manifest.inputs),
            self._names,
            self._outputs_bucket,
        )
        if strangers:
            text = (
                "shards of the bucket have names of the job's templates, but are not of this job "
                f"({len(strangers):,}): {first_few(strangers)}"
            )
            self._findings.warn("other_shards", text)

    def _check_index(self) -> None:
        name, outputs = self._manifest.index, self._whole.outputs
        if not name or self._manifest.job_id != self._whole.job_id:
            return
        try:
            data = read_small(self._outputs_bucket, name, bytes_max=INDEX_BYTES_MAX)
        except ObjectNotFoundError:
            self._findings.problem("index", name, "", "is not there")
            return
        check_index(data, self._whole.job_id, outputs, self._shared.md5, name, self._findings)

    def _report(self, outputs: OutputTable) -> VerifyReport:
        return VerifyReport(
            job_id=self._manifest.job_id,
            output_uri=self._outputs_bucket.uri,
            input_shards=len(self._manifest.inputs),
            output_shards=len(self._manifest.outputs),
            records=len(outputs),
            members=sum(shard.whole.members for shard in outputs.facts if shard.readable),
            bytes_read=self._reader.bytes_read,
            elapsed_s=self._progress.elapsed_s,
            problem_count=self._findings.count,
            problems=tuple(self._findings.problems),
            warnings=tuple(self._findings.warnings),
        )
