"""Asks the code where a single unseen card leaves it unclear: A against B, on that card."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

from msgspec import structs

from perfsuite.boundary import PerfError
from perfsuite.judge.verdict import IN_TURNS
from perfsuite.model import Arm, Revision, Run, Stage, Trace, Verdict, Word
from perfsuite.nightly.limit import TimeLimit
from perfsuite.run import against as turns
from perfsuite.run.against import of_one_code
from perfsuite.run.config import Request
from perfsuite.run.run import Listener, Outcome, execute
from perfsuite.store.git import RevisionOptions
from perfsuite.store.runs import RunFile
from perfsuite.workers.units import Desks

# Runs and checkouts of this room, in the state folder: nobody's earlier run, none to resume.
FOLDER = "settled"


def settled(request: Request, listener: Listener) -> Outcome:
    """Execute a request and settle it on the same desks; raises as ``execute`` does."""
    with Desks() as desks:
        return settle(execute(request, listener, desks), request, listener, desks)


def settle(outcome: Outcome, request: Request, listener: Listener, desks: Desks) -> Outcome:
    """Return the outcome with what the baseline's own revision, measured beside the tree, decides.

    What was found before is in the run file either way; Ctrl-C leaves the rest unclear. ``desks``
    are those of the run that asks.
    """
    # First those that were not confirmed, since this is to decide them.
    confirmed = {r.variant for r in outcome.run.results if r.stage is Stage.CONFIRM}
    doubted = turns.by_size(v for v in outcome.run.verdicts if v.card)
    doubted.sort(key=lambda verdict: verdict.variant in confirmed)
    if request.against is not None or not doubted:
        return outcome
    limit = TimeLimit(request.time_s, spent_s=outcome.run.wall_s)
    settling = _Settling(outcome, request, listener, limit, desks)
    is_interrupted = False
    try:
        ask = partial(settling.ask, doubted[: turns.MOST])
        outcome.steps.take("the rest was not measured in turns", ask, None)
    except KeyboardInterrupt:
        is_interrupted = True
        desks.close()  # a second Ctrl-C may have left a thread that still measures
        settling.notes.append("interrupted while the baseline's code was measured in turns")
    if left := len(doubted[turns.MOST :]):
        settling.leave(left, f"{turns.MOST} at most are")
    found = settling.run
    amended = outcome.steps.take(
        "the run's file lacks what was found in turns",
        lambda: RunFile.amend(outcome.run_file, found, traces=settling.traces),
        structs.replace(found, traces=(*found.traces, *settling.traces)),
    )
    return replace(outcome, run=amended, is_interrupted=is_interrupted)


@dataclass
class _Settling:
    """The doubted verdicts of one run, the answers found so far, and what was not asked.

    ``traces`` are of what the answers call slower or faster: the run that asks saw no cause to.
    """

    outcome: Outcome
    request: Request
    listener: Listener
    limit: TimeLimit
    desks: Desks
    answers: dict[str, Verdict] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def run(self) -> Run:
        """The run with the answers in their verdicts' place, and the time that they took."""
        run, spent_s = self.outcome.run, time.monotonic() - self.started
        verdicts = tuple(self.answers.get(verdict.variant, verdict) for verdict in run.verdicts)
        return structs.replace(
            run,
            verdicts=verdicts,
            notes=(*run.notes, *self.notes),
            wall_s=round(run.wall_s + spent_s, 3),
            phases_s={**run.phases_s, "turns": round(spent_s, 3)},
        )

    def leave(self, count: int, why: str) -> None:
        self.notes.append(f"{count} not measured in turns with the baseline's code: {why}")

    def ask(self, doubted: Sequence[Verdict]) -> None:
        """Measure each revision that baselines come from with the variants that it is asked of."""
        for commit, verdicts in groupby(sorted(doubted, key=self._commit), key=self._commit):
            asked = {verdict.variant: verdict for verdict in verdicts}
            why = turns.refusal(commit, self.outcome.run.commit)
            why = f"{self.limit} left no time" if self.limit.is_over() else why
            try:
                if not why:
                    say = f"{len(asked)} unclear on a card never seen: measuring {commit} in turns"
                    self.listener.note(say)
                    self._measure(commit, asked)
            except (PerfError, OSError) as error:
                why = _first_line(error)
            if why:
                self.leave(len(asked), why)

    def _commit(self, verdict: Verdict) -> str:
        return self.outcome.commits.get(self.outcome.baselines[verdict.variant].run, "")

    def _measure(self, commit: str, asked: Mapping[str, Verdict]) -> None:
        question = replace(
            self.request,
            variants=tuple(each for each in self.outcome.run.variants if each.id in asked),
            claims=(),
            resume=False,
            resume_if_any=False,
            time_s=self.limit.left_s(),
            shard=None,
            # A night may have forty of these to ask.
            is_brief=True,
            against=RevisionOptions(rev=commit, project=self.request.root),
            folder=self.request.folder / FOLDER,
        )
        run = execute(question, self.listener, self.desks).run
        known = {trace.variant for trace in self.outcome.run.traces}
        own = (trace for trace in run.traces if trace.arm is Arm.B)
        # One that failed must not take the place of what the run that asks has.
        self.traces += [each for each in own if each.kernels or each.variant not in known]
        said = {verdict.variant: verdict for verdict in run.verdicts}
        of_one = dict(of_one_code(run))
        for name, mine in asked.items():
            found = said.get(name)
            if run.against and found and found.source == str(run.against) and name not in of_one:
                self.answers[name] = self._answer(mine, found, run.against)
            else:
                why = of_one.get(name) or (found and found.reason)
                told = f"in turns with {commit}: {why or 'it was not measured'}"
                # Against the baseline fresh processes may be clear, as in a confirmation; that code
                # is the same as itself says nothing.
                is_other = found is not None and found.source != str(run.against)
                kept = found if found and is_other and found.word is Word.SAME else mine
                self.answers[name] = structs.replace(kept, reason=f"{kept.reason}; {told}")

    def _answer(self, mine: Verdict, found: Verdict, revision: Revision) -> Verdict:
        """Return a change of the code as found, *same* for none, else why it is still unclear.

        What is no change of the repository's code may be one of what it uses from outside: where
        that is known to be another, it is named and left unclear.
        """
        if found.word in {Word.SLOWER, Word.FASTER}:
            return self.request.exceptions.applied([found], self.outcome.run)[0]
        if found.word is not Word.SAME:
            return structs.replace(
                mine, reason=f"{mine.reason}; {revision} in turns: {found.reason}"
            )
        told = f"{revision} is the same in turns on this card"
        how_much = f"in turns {_first_clause(found.reason)}"
        run, source = self.outcome.run, self.outcome.baselines[mine.variant].run
        before = run.environments.get(source, {})
        if causes := ", ".join(turns.differing(before, run.facts.environment)):
            causes = f"not the repository's code, but what it runs on (this card, {causes})"
            return structs.replace(mine, reason=f"{told}: {causes}; {mine.reason}")
        return structs.replace(
            mine,
            word=Word.SAME,
            reason=f"{told}, which is what differs; {how_much}; {mine.reason}",
            confirmation=IN_TURNS,
            fails=False,
            card="",
        )


def _first_clause(reason: str) -> str:
    """Return what was found of how much; the limits of turns are not those of the verdict."""
    return reason.partition("; from ")[0]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
