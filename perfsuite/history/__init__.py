"""The history of many runs, in a database behind a URL: the only room that knows SQL."""

from perfsuite.history.address import url_of
from perfsuite.history.reading import recent, series_of, skus, trends, variants_like
from perfsuite.history.rows import StoredPoint, StoredRun, stored_of
from perfsuite.history.shifts import with_shifts
from perfsuite.history.store import History

__all__ = [
    "History",
    "StoredPoint",
    "StoredRun",
    "recent",
    "series_of",
    "skus",
    "stored_of",
    "trends",
    "url_of",
    "variants_like",
    "with_shifts",
]
