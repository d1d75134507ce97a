"""Variants of a case that ended alike, told as one: on page and terminal, in Markdown and JUnit."""

from __future__ import annotations

import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from perfsuite.model import TIME
from perfsuite.report import view
from perfsuite.report.data import Fact, RunView, VariantView, axes_of, case_of, rarest
from perfsuite.report.view import STAYED, Mark
from perfsuite.stats import grouped

# A cause has so many facts, so many variants are selected by name, and the next steps are those of
# so many words, and of what moved.
MOST_FACTS, MOST_NAMED, MOST_KINDS = 4, 4, 3
# Reasons for which a baseline's commit is not here.
LACKING = {"shallow", "squashed"}
# What to do about variants of a word, beside the command that measures them again.
REMEDIES = {
    "wrong": "repair the result, then measure again",
    "crashed": "read its output, repair it, then measure again",
    "timed-out": "find what hangs, repair it, then measure again",
    "error": "correct the case's code, then measure again",
    "over-budget": "make it faster or change its budget, then measure again",
    "slower": "repair it, then measure again",
    "environment": "undo what changed on the machine, then measure again",
    "disturbed": "end other work on this device, then measure again",
    "unclear": "measure it in more processes",
    "cut short": "measure this alone, or all with more --perf-time",
}


class Alike(NamedTuple):
    """Some variants of a case, by id; ``axes`` are those that they share, and not all others have.

    ``total`` is how many variants of the case have these axes.
    """

    case: str
    axes: tuple[str, ...]
    members: tuple[str, ...]
    total: int

    @property
    def name(self) -> str:
        """The id of one variant; of several their case and what they share."""
        return self.members[0] if len(self.members) == 1 else ", ".join([self.case, *self.axes])


def alike(chosen: Iterable[str], every: Iterable[str]) -> Iterator[Alike]:
    """Group variants by case, and within a case by the axis that tells them best from ``every``.

    That is the axis with the best balance (F1) of how many of the chosen have it and how many that
    have it are chosen; all of a case are one group where no axis does better than none.
    """
    chosen = list(dict.fromkeys(chosen))
    peers = grouped(dict.fromkeys((*every, *chosen)), case_of)
    for case, members in grouped(chosen, case_of).items():
        axes = {one: axes_of(one) for one in peers[case]}
        counts = Counter(axis for own in axes.values() for axis in own)
        left = members
        while left:
            held = Counter(axis for one in left for axis in axes[one])
            fits = {axis: 2 * held[axis] / (len(left) + counts[axis]) for axis in held}
            best = max(fits, key=lambda axis: fits[axis], default="")
            is_told = fits.get(best, 0.0) > 2 * len(left) / (len(left) + len(axes))
            some = [one for one in left if best in axes[one]] if is_told else left
            common = set(axes[some[0]]).intersection(*(axes[one] for one in some))
            shared = [axis for axis in axes[some[0]] if axis in common and counts[axis] < len(axes)]
            total = sum(set(shared) <= set(own) for own in axes.values())
            yield Alike(case, tuple(shared), tuple(some), total)
            gone = set(some)
            left = [one for one in left if one not in gone]


class Group(NamedTuple):
    """Variants of a case that ended alike: what they share, and each of them, the worst first.

    ``others`` of the case did not change, each of them ``within`` so much.
    """

    mark: Mark
    alike: Alike
    views: tuple[VariantView, ...]
    others: int = 0
    within: float | None = None

    @property
    def first(self) -> VariantView:
        """The variant that needs a reader most."""
        return self.views[0]

    @property
    def failing(self) -> str:
        """How many of them fail the run, where one does."""
        count, total = sum(one.fails for one in self.views), len(self.views)
        return {0: "", total: "all fail" if total > 1 else "fails"}.get(count, f"{count} fail")

    @property
    def remedy(self) -> str:
        """What to do about them; nothing where nobody has to act."""
        kinds = {each.kind for one in self.views if one.verdict for each in one.verdict.reasons}
        is_cut = self.mark.word == "unclear" and "unconfirmed" in kinds
        impls = {one.variant.axes.get("impl") for one in self.views}
        is_all = self.mark.word == "wrong" and len(impls) > 1 == len(self.views) / self.alike.total
        remedy = REMEDIES.get("cut short" if is_cut else self.mark.word, "")
        return "look at the reference first, " * is_all + remedy

    @property
    def size(self) -> str:
        """How much they changed: of one its change, of several the range and the median."""
        known = [one.telling for one in self.views if one.telling and one.telling.baseline]
        # How far a budget is missed is no change.
        if not known or self.mark.word not in {"environment", "slower", "faster"}:
            return ""
        if len(known) == 1:
            return view.judged(known[0])[2].lstrip(f"+{view.MINUS}")
        found = sorted(abs(each.theta) for each in known)
        ends = (found[0], statistics.median(found), found[-1])
        low, middle, high = (view.percent(each).removeprefix("+") for each in ends)
        return low if low == high else f"{low.partition(view.SPACE)[0]} to {high} (median {middle})"

    @property
    def outcome(self) -> str:
        """How many of how many ended so, and how much they changed."""
        count, word = len(self.views), self.mark.word
        total = self.alike.total
        told = f"all {count} {word}" if count == total else f"{count} of {total} {word}"
        told = word if total == 1 else told
        metric = self.first.telling.metric if self.first.telling else TIME.name
        told += f" in {metric}" if metric != TIME.name else ""
        return f"{told} by {self.size}" if self.size else told

    @property
    def cause(self) -> str:
        """Why they changed: the facts that they share, else why the worst of them did."""
        if self.mark.is_quiet:
            return ""
        if len(self.views) == 1:
            return self.first.cause
        facts = list(common([one.explanation.facts for one in self.views]))
        # What differs makes nothing unclear.
        if facts and self.mark.tone != "unclear":
            shares = sorted(min(1.0, max(0.0, one.explanation.share or 0.0)) for one in self.views)
            ends = " to ".join(dict.fromkeys(view.share(shares[at]) for at in (0, -1)))
            is_traced = any(one.explanation.share is not None for one in self.views)
            told = f"; traced kernels explain {ends} of the change" if is_traced else ""
            return ", ".join(facts[:MOST_FACTS]) + told
        cause, reasons = self.first.cause, {one.cause for one in self.views}
        others = f" (one of {len(reasons)} reasons)" * (self.mark.tone == "fail")
        return f"{self.first.id}{others}: {cause}" if cause and len(reasons) > 1 else cause

    @property
    def since(self) -> str:
        """The commit that they changed since and the day of its run, where all share both."""
        found = {one.base for one in self.views if one.entry and one.telling}
        commit, day = found.pop() if len(found) == 1 and self.size else ("", "")
        return " of ".join(filter(None, [view.commit(commit), day]))

    @property
    def command(self) -> str:
        """The command that measures them again."""
        one, case = rarest(self.views), self.first.variant.case
        select = ",".join([f"pack={case.pack}", f"case={case.name}", *self.alike.axes])
        if len(self.views) == 1 or len(self.views) < min(self.alike.total, MOST_NAMED + 1):
            select = " ".join(each.id for each in self.views)
        if self.remedy != REMEDIES["unclear"]:
            return one.again(select)
        settings = self.first.run.settings
        more = 2 * max(settings.processes, settings.confirm_processes)
        return one.again(select, f"--perf-processes={more}")

    @property
    def rest(self) -> str:
        """What is known of the case's other variants."""
        if not self.others or not self.size:
            return ""
        told = f"the same within {view.share(self.within)}" if self.within else "unchanged"
        return f"{view.count(self.others, 'other')} of {self.alike.case} {told}"


def common(sides: Sequence[Iterable[Fact]]) -> Iterator[str]:
    """Yield in words the facts that more than half of some variants share.

    Facts that are the same in each come first. Of the others the first variant's is an example.
    """
    found: dict[str, Counter[Fact]] = {}
    for fact in (fact for facts in sides for fact in dict.fromkeys(facts)):
        found.setdefault(fact[0], Counter())[fact] += 1
    for name, facts in sorted(found.items(), key=lambda item: len(item[1]) > 1):
        _, old, new = next(iter(facts))
        if 2 * facts.total() > len(sides):
            told = f"{old} {view.ARROW} {new}" if old else new
            yield f"{name} {told}" if len(facts) == 1 else f"{name} (for example {told})"


def groups_of(run_view: RunView) -> list[Group]:
    """Return the variants that ran, those that ended alike together, what needs a reader first."""
    ran = {one.id: one for one in run_view.ran}
    stayed = (one for one in ran.values() if one.mark.word in STAYED)
    quiet = grouped(stayed, lambda one: case_of(one.id))
    kinds = grouped(ran.values(), lambda one: (one.mark, one.telling and one.telling.metric))
    found = []
    for (mark, _), views in kinds.items():
        for each in alike((one.id for one in views), ran):
            others = quiet.get(each.case, []) if mark.word not in STAYED else []
            known = (one.telling for one in others if one.telling)
            seen = max((abs(end) for c in known for end in (c.low, c.high)), default=None)
            members = tuple(ran[name] for name in each.members)
            found.append(Group(mark, each, members, len(others), seen))
    return sorted(found, key=lambda one: (not one.failing, one.mark.rank, -len(one.views)))


class Step(NamedTuple):
    """What to do next: in words, the command for it, and where that is shown."""

    text: str
    command: str
    link: str = ""


def advice(run_view: RunView) -> Iterator[Step]:
    """Yield what to do next, as page and terminal tell it."""
    loud = [one for one in groups_of(run_view) if not one.mark.is_quiet]
    tones, run = {one.mark.tone for one in loud}, run_view.run
    # Of each kind the group that comes first.
    kinds = sorted({o.mark.word: o for o in loud[::-1] if o.remedy}.values(), key=loud.index)
    moved = next((o for o in kinds if o.mark.word in {"slower", "environment", "unclear"}), None)
    for at, one in enumerate(kinds):
        if one is moved:
            yield from _beside(run_view, one)
        if one is moved or at < MOST_KINDS:
            told = f"{one.remedy} ({one.mark.word}: {one.alike.name})"
            yield Step(told, one.command, f"#{one.first.anchor}")
    if not (run.against or "fail" in tones or run_view.counts["disturbed"]):
        yield from _accepted(run_view, tones)
    if run_view.broken:
        yield Step("read which claims do not hold, then measure again", run.command, "#claims")


def _beside(run_view: RunView, moved: Group) -> Iterator[Step]:
    """Say how what moved is decided and understood, beside the code that it is compared with."""
    run, base = run_view.run, run_view.bases[0][0] if run_view.bases else ""
    old, now, one = view.commit(base), view.commit(run.commit) * (not run.is_dirty), moved.first
    kinds = {each.kind for each in one.verdict.reasons} if one.verdict else set()
    # A tree that was changed is in no commit; another commit is not in every clone.
    is_known = bool(base) and "-" not in base and LACKING.isdisjoint(kinds)
    if moved.mark.word == "slower":
        why = f"perfsuite why {shlex.quote(one.id)} --run {run.id}"
        yield Step("see why it got slower", why, f"#{one.anchor}")
    is_exact = one.now() is None or bool(one.telling and one.telling.low == one.telling.high)
    is_beside = run.against or (one.verdict and one.verdict.in_turns)
    if is_known and not (is_beside or is_exact):
        told = f"measure {moved.alike.name} now and at its baseline's commit, alternating"
        yield Step(told, f"{moved.command} --perf-against={old}")
    # What is compiled may be another pack's kernel, whose folder a run without it does not know.
    files = {each.variant.pack: each.variant.case.file for each in run_view.variants}
    named = (str(value).partition(".") for value in one.variant.axes.values())
    packs = (pack for pack, dot, _ in named if dot and pack in {*files, *run.sources})
    folder, slash, file = files.get(next(packs, one.variant.pack), "").rpartition("/")
    if is_known and (slash or not file) and old != now:
        diff = " ".join(filter(None, ["git diff", old, now, "--", shlex.quote(folder or ".")]))
        link = now and view.web(run.remote, base, run.commit)
        yield Step("see what changed in its source", diff, link)


def _accepted(run_view: RunView, tones: set[str]) -> Iterator[Step]:
    """Offer to accept a run; nobody is asked to accept what did not change, or what is wrong."""
    accept = f'perfsuite baseline accept {run_view.run.id} --reason "..."'
    words = run_view.counts
    # What the baselines of its own SKU lack is compared with nothing, however often it runs.
    is_first = not any(o.expected.slug for o in run_view.ran if o.mark.word == "new")
    if is_first and 2 * words["new"] >= len(run_view.ran) > 0 and not tones:
        yield Step("run again to compare with this run, or accept it", accept)
    elif tones - {"unclear", "faster"}:
        yield Step("only if the change is intended, accept the new numbers", accept)
    elif words["new"] or words["faster"]:
        yield Step("to keep what is new or faster as the baseline, accept it", accept)
