"""The inside of the engine, as far as tests reach it: one place to change when it moves.

Names are loaded when a test imports them, so that a test loads no more of the engine than it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES = {
    "dsort.data.arrow_arrays": "arrow_bytes arrow_numbers arrow_structs",
    "dsort.data.columns": (
        "Bools BytesColumn Int32s Int64s UInt32s UInt64s UInt8s are_all_rows cut_rows "
        "equal_ranges numbers_at row_numbers run_sums runs_that_fit"
    ),
    "dsort.data.entries": "PlacedEntries entries_bytes packed_entries placed_entries",
    "dsort.data.hashes": "any_twice hash_keys md5_digests mix permuted shard_seed shuffle_words",
    "dsort.data.index": (
        "BLOCK_LENGTH BLOCK_SHARD BLOCK_START BLOCK_WORKER CONTENT_HASH ENTRIES KEYS MEMBERS "
        "ORDINAL RANGES RANK SHARD STORED_BYTES SortKeys TEXT record_index"
    ),
    "dsort.data.json_pointer": "JsonNumber JsonPointer JsonSyntaxError is_json",
    "dsort.data.json_values": "checked Count INTEGER_MAX json_bytes Rows ROWS_AT_ONCE",
    "dsort.data.key_set": "KeySet lines_of",
    "dsort.data.members": "MemberKind MemberTable ScanNotes bare_table",
    "dsort.data.numbered": "NumberedColumn are_positions hash_column numbered_hashes",
    "dsort.data.packed_texts": "CHUNK_BYTES PackedTexts TextsByNumber",
    "dsort.data.records": "FormedRecords STRAY_SALT form_records split_name split_names",
    "dsort.data.repeated_names": "rows_equal_earlier",
    "dsort.data.row_bytes": (
        "column_of decimals distinct_rows row_by_row RowBytes side_by_side spread"
    ),
    "dsort.data.segments": "NewNames Segments",
    "dsort.data.shares": "shares_of_total",
    "dsort.data.table": "Table",
    "dsort.data.tally": "SAMPLES_MAX Tally",
    "dsort.data.json_values": "encodable from_json is_encodable to_json",
    "dsort.job": (
        "commit journal known_keys programs range_probe resolve setup streams worker_setup"
    ),
    "dsort.job.coordinator": "plan_job run_job",
    "dsort.job.create": "CreatedShards runs_of_small",
    "dsort.job.events": "Event JobStarted JobWarning PhaseDone Progress",
    "dsort.job.extraction": "Extraction RUN_BYTES SMALL_BYTES runs_of",
    "dsort.job.facts": "Fact Facts",
    "dsort.job.gc": "Garbage OWNER_FILE find_garbage remove_garbage",
    "dsort.job.hooks": "call_command call_webhook",
    "dsort.job.inputs": "refuse_unreadable resolve_inputs",
    "dsort.job.job": "Buckets Found Job JobAttempt Outcome",
    "dsort.job.job_ids": "moment_of_id new_job_id",
    "dsort.job.journal": "Journal discard_run list_job_directories read_journal",
    "dsort.job.journal_entries": (
        "Committing InputRow InputsResolved JOURNAL_VERSION JobAccepted JournalEvent "
        "JournalState MovementChosen Planned PlannedRow decode_segment encode_segment"
    ),
    "dsort.job.layout": (
        "attempt_name elsewhere_name index_name job_directory journal_prefix lease_name "
        "lineage_name manifest_name reactions_name rejects_name replaced_prefix report_name "
        "result_name segment_name stop_name"
    ),
    "dsort.job.lease": (
        "Lease LeaseRecord Standing WATCH_S_MAX decode_lease encode_lease last_attempt "
        "read_hold stop_job"
    ),
    "dsort.job.lineage": "find_in_lineage",
    "dsort.job.manifest": (
        "Making Manifest ManifestInput ManifestOutput parse_manifest wids_index_bytes "
        "without_names write_manifest"
    ),
    "dsort.job.output_names": "OutputNames TemplateExhaustedError",
    "dsort.job.plan": "OVERHEAD_TEXT",
    "dsort.job.range_probe": "_answers_quickly",
    "dsort.job.report": (
        "Forecast JobReport Order PlanEstimate PlannedShard ReactionCount RecordFlow Run Totals"
    ),
    "dsort.job.user_code": "room_here",
    "dsort.job.reporter": ("JobState PHASES Reporter TIMELINE_SAMPLES_MAX Timeline WARNING_TEXTS"),
    "dsort.job.resources": (
        "CodeRoom JobMemory MemoryLimits job_memory process_memory_bytes usable_memory_bytes "
        "with_part_sizes"
    ),
    "dsort.job.setup": "load_keymap load_steps output_names with_seed",
    "dsort.job.surveys": "exact_outputs",
    "dsort.job.surveys.positions": "Positions",
    "dsort.job.suspend": "gc_command resume_command",
    "dsort.job.synthetic": "ShardRecipe generate_shards shard_pieces",
    "dsort.job.transaction": "Transaction read_kept",
    "dsort.keymap": "match",
    "dsort.keymap.fetch": "read_text",
    "dsort.keymap.match": "KeyMap",
    "dsort.keymap.text": "KeyMapEntries MalformedLine entries_of_mapping parse_keymap",
    "dsort.loader": "forward_tar loader shard_file shard_source",
    "dsort.loader.order": "EpochOrder OrderKind",
    "dsort.loader.position": "Position Remainder Steps",
    "dsort.model.report": "PlanReportView RunReportView WayName",
    "dsort.moves": "payload_spill range_queue short_records spill",
    "dsort.moves.input_shard": ("INPUTS_FILE InputShard ShardBytes inputs_bytes open_input"),
    "dsort.moves.map": "MappedInputs MappedPayload",
    "dsort.moves.payload_files": "PayloadBuffer RangeBuffer",
    "dsort.moves.payload_spill": "DIRECT_BYTES_MIN FLUSH_BYTES SpillWriter",
    "dsort.moves.range_queue": "RangeQueue RangeRead",
    "dsort.moves.short_records": "SHORT_BYTES_MAX are_short gathered",
    "dsort.moves.slices": (
        "JOINED_BYTES_MAX LENGTHS_MAX renamed_slices slices_of slices_of_sources "
        "slices_with_literals"
    ),
    "dsort.moves.spill": "SpilledPayload SplitSpill narrowed",
    "dsort.naming": "names overlap",
    "dsort.naming.inputs": "NAMES_MAX expand_inputs parse_input_template",
    "dsort.naming.patterns": "FileLocation",
    "dsort.naming.names": (
        "ARCHIVE_EXTENSIONS CODEC_EXTENSIONS INTERNAL_PART SHORT_EXTENSIONS archive_extension "
        "check_object_name check_output_name first_few normalize_extension position_key "
        "readable with_extension"
    ),
    "dsort.naming.overlap": (
        "claim_on claims_of conflicts_among final_templates first_conflict is_within names_made "
        "templates_overlap"
    ),
    "dsort.naming.patterns": "KeyPattern glob_prefix glob_regex has_wildcard wildcard_match",
    "dsort.naming.overlap": "NAMES_LOOKED_AT_MAX find_repeats",
    "dsort.naming.safe_names": "new_safe_names safe_name target_escapes unsafe_links unsafe_rows",
    "dsort.naming.templates": "COUNT_MAX ShardTemplate parse_template",
    "dsort.order.algorithms": "ALGORITHMS register",
    "dsort.order.by_key": "Alphanumeric natural_value",
    "dsort.order.base": "Algorithm Check OptionError Record SortValue decreasing_option option",
    "dsort.order.class_numbers": "ClassCounts ClassPlaces classes_of_all",
    "dsort.order.content": "ContentValueError content_value",
    "dsort.order.cut": "CutRule OpenShard OutputShard Piece cut_partition",
    "dsort.order.duplicates": "find_duplicates new_keys repeated_hashes",
    "dsort.order.interleave": "Interleave",
    "dsort.order.joining": "JoinRule Joined JoinedKind LeftOut conflicts_in join_order join_rows",
    "dsort.order.mixing": "Mixing chi_squared_p_value mixing_line",
    "dsort.order.mixing": (
        "BINS_MAX BINS_OPEN_MAX MixingGrid MixingPart MixingTally OutputRuns count_part "
        "counts_in_input_order judge_mixing mixing_of output_bin_shards"
    ),
    "dsort.order.output_shards": "AT_ONCE OutputShards Pieces merge_pieces",
    "dsort.order.sort": "Partitioning Splitters pick_splitters",
    "dsort.order.sort": (
        "big_int_words float_words int_words joined_keys natural_keys order_rows stable_argsort"
    ),
    "dsort.data.record_table": "RecordTable",
    "dsort.pipeline": "movement",
    "dsort.pipeline.compile": "compile_pipeline steps_of",
    "dsort.pipeline.movement": (
        "BUFFER_BYTES_MAX BUFFER_BYTES_MIN COORDINATOR_BYTES Load Movement MovementSizes "
        "NotMappableError PARTITIONS_MAX TooLittleMemoryError WAYS WORKER_BYTES choose_movement "
        "least_memory_bytes workers_that_fit"
    ),
    "dsort.reading.in_order": "BUFFER_BYTES ShardRecord read_shards",
    "dsort.reading.dataset": "COUNTED_BYTES_MIN IndexCache",
    "dsort.reading.record_index": "RecordIndex adjacent_records",
    "dsort.reading.shard_reader": "ShardReader",
    "dsort.runtime": "local",
    "dsort.runtime.base": "Runtime answer",
    "dsort.runtime.local": "AHEAD_A_WORKER ForkedProcess LocalRuntime",
    "dsort.runtime.machine": "Holder Machine",
    "dsort.runtime.ray": "block_server cluster exchange scratch_nodes",
    "dsort.runtime.ray.block_server": "BlockPlace BlockServer Part",
    "dsort.runtime.ray.block_stream": (
        "BATCH_BYTES BlockKey FAILURE ForgedTicketError LENGTH NoBlocksError TicketError"
    ),
    "dsort.runtime.ray.cluster": (
        "Needs RAY_VERSION_MIN RaySession check_form check_listener check_loopback "
        "check_ray_version is_only_on_loopback join_ray listeners listening_words start_ray"
    ),
    "dsort.runtime.ray.directory": (
        "FILES_CHARACTERS_MAX OWNER_BYTES_MAX YOUNG_S discard_ray_directory make_ray_directory "
        "note_owner ray_files rays_left remove_ray_directory"
    ),
    "dsort.runtime.ray.exchange": "BlockClient BlockError BlockRules RayExchange UnreachableError",
    "dsort.runtime.ray.library": "GetTimeoutError RayError RayTaskError",
    "dsort.runtime.ray.messages": "explain listed located",
    "dsort.runtime.ray.runtime": "RayRuntime",
    "dsort.runtime.ray.scratch_nodes": (
        "ANSWER_SECONDS_MAX NodeAgent RayScratchNodes agent_name node_of node_slot_of"
    ),
    "dsort.runtime.ray.directory": "begin_watchdog end_holders end_watchdog holders",
    "dsort.runtime.ray.workers": "RayWorkers",
    "dsort.runtime.task_queue": "LOOKAHEAD_MAX TASK_TRIES_MAX TaskQueue WORKERS_LOST_MAX",
    "dsort.scratch": "columns index",
    "dsort.scratch.lots": "check_class_table class_table_bytes",
    "dsort.scratch.columns": (
        "Column ColumnFile KEPT_FILES_MAX KeptColumns columns_bytes write_columns"
    ),
    "dsort.scratch.directory": "Scratch",
    "dsort.scratch.index": "IndexStore PartitionRows",
    "dsort.scratch.logs": "ShardCreated read_created_logs",
    "dsort.scratch.nodes": (
        "NODE_FILE Request ScratchNodes ShardLocations make_scratch open_scratch scratch_owner"
    ),
    "dsort.scratch.ordered": "OrderedRows",
    "dsort.scratch.positions": "POSITION_SHARD check_left_out",
    "dsort.scratch.requests": "FreeBytes Indexed LineFiles SpillBlocksOf",
    "dsort.scratch.spill": (
        "BLOCK_BYTES Payload SpillBlock SpillFile SpillReader read_spill spill_extents spill_name"
    ),
    "dsort.verification.compare": "match_records occurrences sort_out",
    "dsort.verification.cuts": "FirstRecord Place ShardFacts check_cuts",
    "dsort.verification.findings": "Findings PROBLEMS_MAX VerifyProblem VerifyReport",
    "dsort.verification.input_table": "later_duplicates",
    "dsort.verification.input_table": "InputTable",
    "dsort.verification.outputs": "check_totals find_strangers place_outputs",
    "dsort.verification.read": (
        "Checksums RecordSizes ShardRecords digest_of joined_digests member_digests output_records"
    ),
    "dsort.workers": "header_reader member_names operators sidecars tasks",
    "dsort.workers.batch": "Batch Operator",
    "dsort.workers.conversion": "extensions_by_output packed_records",
    "dsort.workers.encoding": "NoEncoder encoded_pieces",
    "dsort.workers.creator": "Creator MOVE_OF_WAY",
    "dsort.workers.extractor": "Extractor",
    "dsort.workers.gpus": "GpuNeeds GpuPlace gpus_here",
    "dsort.workers.header_reader": "HeaderReader header_hops",
    "dsort.workers.member_names": "with_names_written with_new_names",
    "dsort.workers.lineage": "lineage_of",
    "dsort.workers.orderer": "Orderer",
    "dsort.workers.header_reader": "ReadAhead",
    "dsort.workers.run_extractor": "RunExtractor",
    "dsort.workers.sealer": "publish_all",
    "dsort.workers.sidecars": "MemberWatch _samples_bytes samples_of",
    "dsort.workers.sinks": "PIECE_BYTES StagedFile Writeback",
    "dsort.workers.tasks": (
        "Attempt CreateDone CreateTask CutDone CutTask DuplicatesDone DuplicatesTask "
        "ExtractRunTask ExtractTask OrderDone OrderRunTask OrderTask OutputPiece PublishDone "
        "PublishTask RunExtracted RunOrdered ScratchLost SealDone ShardExtracted Stage Task "
        "TaskDone WorkerSetup"
    ),
    "dsort.workers.worker": "Worker",
}
"""Names by the module that has them; a name that a package has may be a module itself."""

_MODULE_OF = {name: module for module, names in MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"{name} is not in tests/support/internals.py: add it there")
    holder = import_module(module)
    return getattr(holder, name) if hasattr(holder, name) else import_module(f"{module}.{name}")
