"""Finds, loads, lists and selects what packs declare."""

# One grammar, wherever variants are chosen.
GRAMMAR = (
    "ids, patterns of ids ('memory.*'), words ('stream and not cuda') "
    "or conditions ('impl=triton,n>=1e6')"
)
