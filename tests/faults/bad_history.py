"""Histories that hold something else, or are none: a run keeps its verdicts all the same."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

from faults.bad_baselines import BOUND
from faults.lab import FIRST, SECOND, Done, Scene, Stage
from faults.rows import Fault, ends, exits

GROUP = "history"
DB = ".perfsuite/history.db"
Spoil = Callable[[Path], object]


def sql(*statements: str) -> Spoil:
    """Change rows: SQLite takes a value of any type."""

    def act(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA foreign_keys = OFF")
            for each in statements:
                connection.execute(each)
        connection.close()

    return act


def content(data: bytes) -> Spoil:
    """Put something else in the file's place."""
    return lambda path: path.write_bytes(data)


def no_rights(path: Path) -> None:
    """Let it be read and not written, nor anything beside it."""
    path.chmod(0o444)
    path.parent.chmod(0o555)
    (path.parent / "runs").chmod(0o755)


def reason(path: Path) -> None:
    """Put half a character into the baseline's reason: it is stored with the history."""
    (file,) = path.parents[1].glob("baselines/fake/good.json")
    text = file.read_text(encoding="utf-8").replace("a seed", r"half \ud800")
    file.write_text(text, encoding="utf-8")


SPOILS: tuple[tuple[str, Spoil], ...] = (
    ("a text for a time (D8)", sql("UPDATE points SET center = 'fast'")),
    ("version x (D8)", sql("UPDATE perfsuite_schema SET version = 'x'")),
    ("no database", content(b"no database at all\n" * 100)),
    ("it cannot be written", no_rights),
)


def dangling(path: Path) -> None:
    """Put a link in its place that leads to no file, out of the project."""
    path.unlink()
    path.symlink_to("../../elsewhere.db")


def kept(spoil: Spoil, stage: Stage) -> Done:
    """Damage the seed's history and run once more."""
    stage.seeded()
    spoil(stage.project / DB)
    done = stage.perf("--perf-processes=1", wrap=BOUND)
    (stage.project / ".perfsuite").chmod(0o755)
    return done


def verdicts(done: Done, see: str) -> None:
    """Look at the exit code, and at whether there is a verdict on each variant of this run."""
    ends(done, see)
    if "exit 4" in see and done.code == 4:
        return
    reports = list(done.project.glob("reports/*/verdict.json"))
    assert len(reports) == 2, f"{len(reports)} reports"
    assert set(done.endings()) == {FIRST, SECOND}, done.endings()


def asked(spoil: Spoil, words: tuple[str, ...], stage: Stage) -> Done:
    """Damage the seed's history and ask a command."""
    stage.seeded()
    spoil(stage.project / DB)
    return stage.cli("history", *words)


def imported(stage: Stage) -> Done:
    """Import run files: what is wrong with some is no matter to the last."""
    stage.seeded()
    sound = stage.run_file().read_text(encoding="utf-8")
    header, _, rest = sound.partition("\n")
    files = [f"bad{number}.jsonl" for number in range(len(IMPORTED))]
    for name, (_, changes) in zip(files, IMPORTED, strict=True):
        made = {**json.loads(header), **changes}
        stage.write(name, f"{json.dumps(made, separators=(',', ':'))}\n{rest}")
    stage.write("sound.jsonl", sound)
    (stage.project / DB).unlink()
    return stage.cli("history", "import", *files, "sound.jsonl")


ASKED = (
    ("infinity for a time (D8)", sql("UPDATE points SET center = 9e999"), (FIRST,)),
    ("a text for a time (D8)", sql("UPDATE points SET center = 'fast'"), ("trends",)),
)
IMPORTED: tuple[tuple[str, dict[str, object]], ...] = (
    ("a list for its machine (D16)", {"facts": []}),
    ("a huge integer (D16)", {"wall_s": 10**400}),
    ("a number for its date (D16)", {"started": 1}),
    ("half a character in a name (D16)", {"sku": {"slug": "x", "name": "\ud800"}}),
)
IMPORT = Scene("import", imported)
FAULTS = (
    *(
        Fault(GROUP, f"a run where it has {done}", "exit 0|exit 1",
              Scene(f"history {done}", partial(kept, spoil)), verdicts, is_alone=True)
        for done, spoil in SPOILS
    ),
    Fault(GROUP, "a run where a link in its place leads nowhere",
          "exit 0|exit 1: cannot open; leads nowhere; do:",
          Scene("history: a link", partial(kept, dangling)), verdicts, is_alone=True),
    Fault(GROUP, "a run where a baseline's reason has half a character (D8)",
          "exit 0|exit 1|exit 4",
          Scene("history: a reason", partial(kept, reason)), verdicts, is_alone=True),
    *(
        Fault(GROUP, f"history {words[0][:8]} where it has {done}", "exit 0|exit 1|exit 2",
              Scene(f"history {words} {done}", partial(asked, spoil, words)), exits, is_alone=True)
        for done, spoil, words in ASKED
    ),
    *(
        Fault(GROUP, f"import of {done}", f"exit 1: bad{number}.jsonl: not stored", IMPORT, exits)
        for number, (done, _) in enumerate(IMPORTED)
    ),
    Fault(GROUP, "import of a sound file behind these (D16)", "exit 1: sound.jsonl: stored", IMPORT,
          exits),
)  # fmt: skip
