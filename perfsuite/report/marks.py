"""The words of verdicts, statuses and claims with their glyphs and tones, in order of urgency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """A word with its glyph and tone, so that colour never says something alone.

    ``rank`` orders the words by how much they need a reader; ``needs_reader`` opens a section.
    """

    word: str
    glyph: str
    tone: str
    rank: int
    meaning: str

    @property
    def needs_reader(self) -> bool:
        """Say whether somebody should look at this without being asked."""
        return self.tone in {"fail", "budget", "slower"}

    @property
    def is_quiet(self) -> bool:
        """Say whether nobody has to look at this at all."""
        return self.word in {"same", "new", "measured", "checked"}


_MARKS = (
    ("wrong", "✕", "fail", "the output differs from the reference"),
    ("crashed", "✕", "fail", "the worker died"),
    ("timed-out", "✕", "fail", "the worker had to be killed"),
    ("error", "✕", "fail", "the case's own code failed"),
    ("broken", "✕", "fail", "the ratio asked for was not reached"),
    ("over-budget", "!", "budget", "above the limit set by the case's author"),
    ("slower", "▲", "slower", "slower by more than the threshold"),
    ("disturbed", "~", "unclear", "the device was disturbed too often to judge"),
    ("unclear", "?", "unclear", "the evidence does not decide"),
    ("incomparable", "≠", "other", "the baseline is of another kind"),
    ("faster", "▼", "faster", "faster by more than the threshold"),
    ("new", "+", "new", "nothing to compare with yet"),
    ("same", "=", "same", "no change that matters"),
    ("held", "✓", "new", "the ratio asked for was reached"),
    ("measured", "•", "same", "the run ended before it was judged"),
    ("checked", "✓", "same", "correct; speed was not measured"),
    ("not applicable", "\N{EN DASH}", "skip", "this device cannot show it"),
    ("not run", "○", "skip", "the run ended before it"),
    ("left out", "○", "skip", "the run's time limit had no room for it"),
    ("skipped", "○", "skip", "cannot run here"),
)
MARKS: Mapping[str, Mark] = {
    word: Mark(word, glyph, tone, rank, meaning)
    for rank, (word, glyph, tone, meaning) in enumerate(_MARKS)
}


def mark(word: str) -> Mark:
    """Return the mark of a verdict's, status' or claim's word; an unknown word keeps its text."""
    return MARKS.get(word) or Mark(word, "•", "other", len(MARKS), "")
