"""The internal names of the engine that tests use. Only this file changes when such a name moves.

Names are loaded when a test imports them, so that a test loads no more of the engine than it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES = {
    "dsort.data.arrow_arrays": "arrow_bytes arrow_numbers arrow_structs numbers_in",
    "dsort.data.columns": (
        "are_all_rows Bools BytesColumn CHUNK_BYTES cut_rows equal_ranges Int32s Int64s "
        "numbers_at PackedTexts row_numbers run_sums runs_that_fit stable_argsort "
        "TextsByNumber UInt32s UInt64s UInt8s"
    ),
    "dsort.data.hashes": (
        "any_twice digest_in hash_keys md5_digests mix permuted shard_seed shuffle_words"
    ),
    "dsort.data.index": (
        "BLOCK_LENGTH BLOCK_SHARD BLOCK_START BLOCK_WORKER CONTENT_HASH ENTRIES ENTRIES_BYTES "
        "GROUP KEYS MEMBERS ORDINAL PAYLOAD_BYTES RANGES RANK record_index SHARD SortKeys "
        "STORED_BYTES TEXT"
    ),
    "dsort.data.json_pointer": "is_json JsonNumber JsonPointer JsonSizeError JsonSyntaxError",
    "dsort.data.json_values": (
        "checked Count encodable from_json INTEGER_MAX is_encodable json_bytes Rows "
        "ROWS_AT_ONCE to_json"
    ),
    "dsort.data.members": (
        "bare_table entries_bytes MemberKind MemberTable packed_entries placed_entries "
        "PlacedEntries ScanNotes"
    ),
    "dsort.data.numbered": "are_positions hash_column numbered_hashes NumberedColumn",
    "dsort.data.record_table": "RecordTable",
    "dsort.data.records": "form_records FormedRecords split_name split_names STRAY_SALT",
    "dsort.data.row_bytes": (
        "column_of decimals distinct_rows row_by_row RowBytes side_by_side spread"
    ),
    "dsort.data.segments": "NewNames NO_NEW_NAMES Segments",
    "dsort.data.table": "Table",
    "dsort.data.tally": "SAMPLES_MAX Tally",
    "dsort.data.text_sets": "KeySet lines_of rows_equal_earlier",
    "dsort.job": "commit known_keys programs resolve streams",
    "dsort.job.coordinator": "plan_job run_job",
    "dsort.job.create": "CreatedShards runs_of_small",
    "dsort.job.extraction": "Extraction RUN_BYTES runs_of SMALL_BYTES",
    "dsort.job.gc": "find_garbage Garbage OWNER_FILE remove_garbage",
    "dsort.job.job": "Buckets Fact Facts Found Job JobAttempt Outcome",
    "dsort.job.lineage": "find_in_lineage",
    "dsort.job.output_names": "OutputNames TemplateExhaustedError",
    "dsort.job.plan": "FILE_BYTES_MAX OVERHEAD_TEXT",
    "dsort.job.setup": "new_job probes worker_setup",
    "dsort.job.setup.inputs": "refuse_unreadable resolve_inputs",
    "dsort.job.setup.new_job": "load_keymap load_steps output_names with_seed",
    "dsort.job.setup.probes": "_answers_quickly",
    "dsort.job.setup.resources": (
        "CodeRoom job_memory JobMemory MemoryLimits process_memory_bytes usable_memory_bytes "
        "with_part_sizes"
    ),
    "dsort.job.setup.user_code": "room_here",
    "dsort.job.surveys": "exact_outputs",
    "dsort.job.surveys.survey": "Positions",
    "dsort.job.suspend": "gc_command resume_command",
    "dsort.job.synthetic": "generate_shards shard_pieces ShardRecipe",
    "dsort.keymap": "match",
    "dsort.keymap.fetch": "TextKind read_text",
    "dsort.keymap.match": "entries_of_mapping KeyMap KeyMapEntries MalformedLine parse_keymap",
    "dsort.loader": "forward_tar loader shard_file shard_source",
    "dsort.loader.order": "EpochOrder OrderKind Position Remainder Steps",
    "dsort.model.base": "example_of",
    "dsort.model.job": "JobOut",
    "dsort.model.report": "ManifestView PlanReportView RunReportView WayName",
    "dsort.moves": "range_queue slices spill",
    "dsort.moves.input_shard": "inputs_bytes INPUTS_FILE InputShard open_input ShardBytes",
    "dsort.moves.map": "MappedInputs MappedPayload",
    "dsort.moves.payload_files": "PayloadBuffer RangeBuffer",
    "dsort.moves.range_queue": "RangeQueue RangeRead",
    "dsort.moves.slices": (
        "are_short gathered JOINED_BYTES_MAX LENGTHS_MAX renamed_slices SHORT_BYTES_MAX "
        "slices_of slices_of_sources slices_with_literals"
    ),
    "dsort.moves.spill": "narrowed SpilledPayload SplitSpill",
    "dsort.naming": "names overlap",
    "dsort.naming.extensions": "CONTAINERS",
    "dsort.naming.inputs": "expand_inputs NAMES_MAX parse_input_template",
    "dsort.naming.names": (
        "archive_extension ARCHIVE_EXTENSIONS check_object_name check_output_name "
        "CODEC_EXTENSIONS first_few INTERNAL_PART normalize_extension position_key readable "
        "SHORT_EXTENSIONS with_extension"
    ),
    "dsort.naming.overlap": (
        "claim_on claims_of conflicts_among final_templates find_repeats first_conflict "
        "is_within NAMES_LOOKED_AT_MAX names_made templates_overlap"
    ),
    "dsort.naming.patterns": (
        "FileLocation glob_prefix glob_regex has_wildcard KeyPattern wildcard_match"
    ),
    "dsort.naming.safe_names": "new_safe_names safe_name target_escapes unsafe_links unsafe_rows",
    "dsort.naming.templates": "COUNT_MAX parse_template ShardTemplate",
    "dsort.order.algorithms": "ALGORITHMS Alphanumeric natural_value register",
    "dsort.order.base": "Algorithm decreasing_option Record SortValue",
    "dsort.order.class_numbers": "ClassCounts classes_of_all ClassPlaces",
    "dsort.order.content": "content_value ContentValueError",
    "dsort.order.cut": "cut_partition CutRule OpenShard OutputShard Piece",
    "dsort.order.equal_keys": (
        "conflicts_in find_duplicates join_order join_rows Joined JoinedKind JoinRule LeftOut "
        "new_keys repeated_hashes"
    ),
    "dsort.order.like": "KeyPlaces",
    "dsort.order.mixing": "chi_squared_p_value Mixing mixing_line",
    "dsort.order.mixing_counts": (
        "BINS_MAX BINS_OPEN_MAX count_part counts_in_input_order judge_mixing mixing_of "
        "MixingGrid MixingPart MixingTally output_bin_shards OutputRuns"
    ),
    "dsort.order.output_shards": "AT_ONCE merge_pieces OutputShards Pieces",
    "dsort.order.placement": "Interleave",
    "dsort.order.sort": (
        "big_int_words float_words int_words joined_keys natural_keys order_rows Partitioning "
        "pick_splitters Splitters"
    ),
    "dsort.pipeline": "movement",
    "dsort.pipeline.compile": "compile_pipeline steps_of",
    "dsort.pipeline.movement": (
        "BUFFER_BYTES_MAX BUFFER_BYTES_MIN choose_movement COORDINATOR_BYTES "
        "least_memory_bytes Load Movement MovementSizes NO_MOVEMENT NotMappableError "
        "PARTITIONS_MAX TooLittleMemoryError WAYS WORKER_BYTES workers_that_fit"
    ),
    "dsort.reading.dataset": (
        "BoundedIndexCache BUFFER_BYTES COUNTED_BYTES_MIN read_shards ShardRecord"
    ),
    "dsort.reading.record_index": "adjacent_records RecordIndex",
    "dsort.reading.shard": "NoSuchRecordError",
    "dsort.reading.shard_reader": "ShardReader",
    "dsort.reading.view": "open_view ViewBucket",
    "dsort.reading.view_records": "get_batch_requests MemberRange ViewRecord",
    "dsort.results": "journal",
    "dsort.results.hooks": "call_command call_webhook",
    "dsort.results.job_ids": "moment_of_id new_job_id",
    "dsort.results.journal": "discard_run Journal list_job_directories read_journal",
    "dsort.results.journal_entries": (
        "Committing decode_segment encode_segment InputRow InputsResolved JobAccepted "
        "JOURNAL_VERSION JournalEvent JournalState MovementChosen Planned PlannedRow"
    ),
    "dsort.results.layout": (
        "attempt_name elsewhere_name index_name job_directory journal_prefix lease_name "
        "lineage_name manifest_name reactions_name rejects_name replaced_prefix report_name "
        "result_name segment_name stop_name"
    ),
    "dsort.results.lease": "last_attempt Lease read_hold stop_job WATCH_S_MAX",
    "dsort.results.lease_record": "decode_lease encode_lease LeaseRecord Standing",
    "dsort.results.manifest": (
        "Making Manifest ManifestInput ManifestOutput parse_manifest wids_index_bytes "
        "without_names write_manifest"
    ),
    "dsort.results.report": (
        "Event Forecast JobReport JobStarted JobWarning Order PhaseDone PlanEstimate "
        "PlannedShard Progress ReactionCount RecordFlow Run Totals"
    ),
    "dsort.results.reporter": (
        "JobState PHASES Reporter Timeline TIMELINE_SAMPLES_MAX WARNING_TEXTS"
    ),
    "dsort.results.transaction": "read_kept Transaction",
    "dsort.results.views": "places_of ViewJob",
    "dsort.runtime": "local",
    "dsort.runtime.base": "answer LOOKAHEAD_MAX Runtime TASK_TRIES_MAX TaskQueue WORKERS_LOST_MAX",
    "dsort.runtime.local": "AHEAD_A_WORKER ForkedProcess LocalRuntime",
    "dsort.runtime.machine": "Holder Machine",
    "dsort.runtime.ray": "block_server cluster exchange scratch_nodes",
    "dsort.runtime.ray.block_server": "BlockPlace BlockServer Part",
    "dsort.runtime.ray.block_stream": (
        "BATCH_BYTES BlockKey FAILURE ForgedTicketError LENGTH NoBlocksError TicketError"
    ),
    "dsort.runtime.ray.cluster": (
        "check_form check_listener check_loopback check_ray_version is_only_on_loopback "
        "join_ray listeners listening_words Needs RAY_VERSION_MIN RaySession start_ray"
    ),
    "dsort.runtime.ray.directory": (
        "discard_ray_directory FILES_CHARACTERS_MAX make_ray_directory note_owner "
        "OWNER_BYTES_MAX ray_files rays_left remove_ray_directory YOUNG_S"
    ),
    "dsort.runtime.ray.exchange": "BlockClient BlockError BlockRules RayExchange UnreachableError",
    "dsort.runtime.ray.library": "explain GetTimeoutError listed located RayError RayTaskError",
    "dsort.runtime.ray.runtime": "RayRuntime",
    "dsort.runtime.ray.scratch_nodes": (
        "agent_name ANSWER_SECONDS_MAX node_of node_slot_of NodeAgent RayScratchNodes"
    ),
    "dsort.runtime.ray.watchdog": "begin_watchdog end_holders end_watchdog holders",
    "dsort.runtime.ray.workers": "RayWorkers",
    "dsort.scratch": "columns index",
    "dsort.scratch.columns": (
        "Column ColumnFile columns_bytes KEPT_FILES_MAX KeptColumns write_columns"
    ),
    "dsort.scratch.directory": "Scratch",
    "dsort.scratch.index": "IndexStore PartitionRows",
    "dsort.scratch.logs": "read_created_logs ShardCreated",
    "dsort.scratch.nodes": (
        "make_scratch NODE_FILE NoExchange open_scratch Request scratch_owner ScratchNodes "
        "ShardLocations"
    ),
    "dsort.scratch.requests": (
        "check_class_table class_table_bytes FreeBytes Indexed LineFiles SpillBlocksOf"
    ),
    "dsort.scratch.spill": (
        "BLOCK_BYTES Payload spill_extents spill_name SpillBlock SpillFile SpillFiles SpillReader"
    ),
    "dsort.scratch.tables": "check_left_out OrderedRows POSITION_SHARD",
    "dsort.transforms.outputs": "shares_of_total",
    "dsort.verification.comparison": "match_records occurrences sort_out",
    "dsort.verification.findings": "Findings PROBLEMS_MAX Sample VerifyProblem VerifyReport",
    "dsort.verification.input_table": "InputTable later_duplicates RecordRows",
    "dsort.verification.order": "check_cuts Place ShardFacts Sizes",
    "dsort.verification.outputs": "check_totals find_strangers place_outputs",
    "dsort.verification.shards": (
        "Checksums digest_of joined_digests member_digests output_records RecordSizes ShardRecords"
    ),
    "dsort.workers": "companions header_reader index_writer tasks",
    "dsort.workers.batch": "Batch Operator",
    "dsort.workers.companions": "_samples_bytes lineage_of MemberWatch samples_of",
    "dsort.workers.conversion": "extensions_by_output packed_records",
    "dsort.workers.creator": "Creator MOVE_OF_WAY publish_all",
    "dsort.workers.encoder": "encoded_pieces NoEncoder",
    "dsort.workers.extractor": "Extractor",
    "dsort.workers.gpus": "GpuNeeds GpuPlace gpus_here",
    "dsort.workers.header_reader": "header_hops HeaderReader ReadAhead",
    "dsort.workers.index_writer": "DIRECT_BYTES_MIN FLUSH_BYTES SpillWriter",
    "dsort.workers.operators": "all_operators member_names",
    "dsort.workers.operators.member_names": "with_names_written with_new_names",
    "dsort.workers.orderer": "Orderer",
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
