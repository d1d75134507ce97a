"""The model as text and back: every field name and schema version is written in this room."""

from perfsuite.codec.blocks import (
    Acceptance,
    RunFacts,
    StoredEntry,
    baseline_text,
    flat_text,
    read_baseline,
    read_flat,
    round_digits,
)
from perfsuite.codec.lines import (
    TAIL_BYTES,
    end_lines,
    is_finished,
    read_header,
    read_run,
    result_line,
    start_lines,
    trace_line,
)
from perfsuite.codec.text import check_levels, convert, decode, encode, read_json, schema_of

__all__ = [
    "TAIL_BYTES",
    "Acceptance",
    "RunFacts",
    "StoredEntry",
    "baseline_text",
    "check_levels",
    "convert",
    "decode",
    "encode",
    "end_lines",
    "flat_text",
    "is_finished",
    "read_baseline",
    "read_flat",
    "read_header",
    "read_json",
    "read_run",
    "result_line",
    "round_digits",
    "schema_of",
    "start_lines",
    "trace_line",
]
