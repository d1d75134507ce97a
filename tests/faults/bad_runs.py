"""Run files that are cut or made up: nothing is lost, and nothing leaves its folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial

from faults.lab import FIRST, QUICK, SECOND, Done, Scene, Stage
from faults.rows import Fault, exits, of

GROUP = "run file"
PRECIOUS = "written by hand\n"
# How much of the file is left, in twentieths; the plan ends before.
CUTS = (12, 19)


def cut(stage: Stage) -> dict[str, Done]:
    """Cut a run's file at several places, and go on with what is left."""
    done = stage.perf(*QUICK)
    assert done.code == 0, done.out
    path = stage.run_file()
    data = path.read_bytes()
    found = {}
    for twentieths in CUTS:
        path.write_bytes(data[: len(data) * twentieths // 20])
        for other in path.parent.iterdir():
            assert other == path, other
        found[str(twentieths)] = gone_on(stage.perf(*QUICK, "--perf-resume"))
    path.write_bytes(data[:200])
    found["header"] = stage.perf(*QUICK, "--perf-resume")
    return found


def gone_on(done: Done) -> Done:
    """Say behind the output what the run's file holds now, and whether it was gone on with."""
    counts = Counter(done.results()) if done.code == 0 else Counter()
    files = len(list(done.project.glob(".perfsuite/runs/*")))
    told = "".join(f"\n{n} result of {name}" for name, n in counts.items())
    return Done(done.code, f"{done.out}{told}\n{files} run file", done.project)


def renamed(run_id: str, words: tuple[str, ...], stage: Stage) -> Done:
    """Give the seed's run another id and a command its file; say what it replaced."""
    stage.seeded()
    header, _, rest = stage.run_file().read_text(encoding="utf-8").partition("\n")
    run_id = run_id.replace("ROOT", str(stage.root))
    # Half characters and control characters as JSON has them.
    made = json.dumps({**json.loads(header), "id": run_id}, separators=(",", ":"))
    stage.write("foreign.jsonl", f"{made}\n{rest}")
    keep = [stage.write(name, PRECIOUS) for name in ("index.html", "summary.md", "verdict.json")]
    done = stage.cli(*words)
    replaced = [path.name for path in keep if path.read_text(encoding="utf-8") != PRECIOUS]
    told = f"{done.out}\nREPLACED {replaced}" if replaced else done.out
    return Done(done.code, told, done.project)


def foreign(text: Callable[[str], str | bytes], words: tuple[str, ...], stage: Stage) -> Done:
    """Damage the seed's run file, and give it to a command."""
    stage.seeded()
    made = text(stage.run_file().read_text(encoding="utf-8"))
    stage.write("foreign.jsonl", made)
    return stage.cli(*words)


REPORT = ("report", "foreign.jsonl")
OUT = "../../../OUTSIDE"
IDS = (
    ("an absolute id", "ROOT/OUTSIDE", REPORT),
    ("an id that leads upwards", OUT, REPORT),
    ("the id ..", "..", REPORT),
    ("an id with escape sequences", "x\x1b]0;title\x07\x1b[2J", REPORT),
    ("an id with half a character", "x\ud800", REPORT),
    ("two runs with an id that leads upwards", OUT, ("compare", "foreign.jsonl", "foreign.jsonl")),
    ("an id with escape sequences", "x\x1b[2J", ("compare", "foreign.jsonl", "foreign.jsonl")),
    ("an id that leads upwards", OUT, ("baseline", "accept", "foreign.jsonl", "--reason=x")),
    ("an id with escape sequences", "x\x1b[2J", ("history", "import", "foreign.jsonl")),
)
FOREIGN = (
    ("cut in its header", lambda text: text[:100]),
    ("a time of 1e308", lambda text: text.replace('"time_us":[', '"time_us":[1e308,', 1)),
    ("a time of 5e-324", lambda text: text.replace('"time_us":[', '"time_us":[5e-324,', 1)),
    ("a metric with a space", lambda text: text.replace('"exact":{', '"exact":{"A b":1.0,', 1)),
    ("a target that is no axis", lambda text: text.replace('"target":""', '"target":"zz"', 1)),
    ("5000 digits (D15)", lambda text: text.replace('"seed":', f'"seed":{"9" * 5000},"x":', 1)),
    ("800 lists for a text (D15)", lambda text: text.replace('"started":"', f'"started":{"[" * 800}'
                                                            f'{"]" * 800},"x":"', 1)),
)  # fmt: skip
CUT = Scene("cut", cut)
RIGHT = f"exit 0: 1 result of {FIRST}; 1 result of {SECOND}; 1 run file"
FAULTS = (
    *(
        Fault(GROUP, f"cut at {number}/20, and resumed", RIGHT, CUT, of(str(number)))
        for number in CUTS
    ),
    Fault(GROUP, "cut in its header, and resumed", "exit 4: .jsonl; do:", CUT, of("header")),
    *(
        Fault(GROUP, f"{' '.join(words[:2]).removesuffix(' foreign.jsonl')} of {done} (D2)",
              "exit 1|exit 2: do:; not REPLACED",
              Scene(f"id {n} {words[0]}", partial(renamed, run_id, words)), exits, is_alone=True)
        for n, (done, run_id, words) in enumerate(IDS)
    ),
    *(
        Fault(GROUP, f"report of a file: {done}", "exit 2: foreign.jsonl; do:",
              Scene(f"foreign {done}", partial(foreign, text, REPORT)), exits, is_alone=True)
        for done, text in FOREIGN
    ),
)  # fmt: skip
