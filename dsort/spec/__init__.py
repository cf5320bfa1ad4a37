"""Job specs: reads, checks and completes what a user writes.

A spec is given as a file, a text or a mapping, in JSON, YAML or one of AIStore's older dialects.
The result is a frozen :class:`JobSpec`, complete and checked, with warnings for its writer; or a
``SpecError`` with all of its problems at once, each with its field and a hint. Nothing here opens a
bucket or decides anything about data.
"""
