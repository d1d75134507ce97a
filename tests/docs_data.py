"""The pages of docs/ as a reader's shell sees them: their blocks, and what is said about those.

A line ``<!-- KIND: TEXT -->`` straight before a block is for the tests, and no reader sees it:
``not run`` gives the reason why a block's commands are only parsed; ``exit`` and ``shows`` say how
its last command ends and what it prints; ``file`` names the file that the block is the text of;
``played`` a pack's file that is replaced, behind the block, by its twin for the fake device.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    if "proof" not in path.relative_to(ROOT).parts  # says how a page was made, in the past
)
VARIANT = "acme.softmax[rows=1024,cols=1000,impl=eager]"
OWN = ("pytest", "perfsuite", "tox")
_FENCE = re.compile(r"^( *)(```+)(\w*)\n(.*?)^\1\2 *$", re.DOTALL | re.MULTILINE)
_SAID = re.compile(r"<!-- (not run|exit|shows|file|played): (.*?) -->\s*\Z")
_INLINE = re.compile(r"`([^`\n]+)`")
_WORDS = ("pytest --perf", "perfsuite ", "tox")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, its text, and what the comments before it say."""

    language: str
    text: str
    line: int
    said: Mapping[str, str] = field(default_factory=dict)

    def commands(self) -> list[str]:
        """Return the lines of a shell, or what stands behind the prompts of a console."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return lines if self.language == "sh" else [x[2:] for x in lines if x.startswith("$ ")]


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks_of(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    return [
        Block(
            found[3], _dedented(found), text.count("\n", 0, found.start()) + 1, _said(text, found)
        )
        for found in _FENCE.finditer(text)
    ]


def _dedented(found: re.Match[str]) -> str:
    return re.sub(f"^{found[1]}", "", found[4], flags=re.MULTILINE)


def _said(text: str, found: re.Match[str]) -> dict[str, str]:
    before, said = text[: found.start()], {}
    while match := _SAID.search(before):
        said[match[1]] = match[2]
        before = before[: match.start()]
    return said


def mentioned(path: Path) -> list[str]:
    """Return the commands of ours that a page names, in blocks of any kind and in its text."""
    blocks = blocks_of(path)
    consoles = [command for block in blocks for command in block.commands()]
    shells = [b for b in blocks if b.language in {"", "bash"}]
    plain = [line for b in shells for line in b.text.replace("\\\n", " ").splitlines()]
    inline = _INLINE.findall(_FENCE.sub("", path.read_text(encoding="utf-8")))
    told = [text for text in (*plain, *inline) if text.startswith(_WORDS)]
    return [part for text in (*consoles, *told) for part in _parts(text)]


def _parts(text: str) -> Iterator[str]:
    """Yield each command of a line that is ours, from its name on."""
    for part in re.split(r"\s(?:&&|\|\|?|;)\s", text.partition("  #")[0]):
        words = part.split()
        while words and "=" in words[0]:
            words = words[1:]
        if words and words[0] in OWN:
            yield " ".join(words)


def unknown_in(command: str) -> list[str]:
    """Return what a command names that pytest's plugin, perfsuite or tox does not have."""
    name, *words = shlex.split(command.replace("...]", "]"))
    words = words[: words.index("--")] if "--" in words else words
    if name == "tox":
        known = re.findall(
            r"^\[testenv:(\w+)\]", (ROOT / "tox.ini").read_text("utf-8"), re.MULTILINE
        )
        asked = [
            env for at, word in enumerate(words) if word == "-e" for env in words[at + 1].split(",")
        ]
        return [env for env in asked if env not in known]
    return _unknown_options(words) if name == "pytest" else _unknown_to_perfsuite(words)


def _unknown_options(words: Sequence[str]) -> list[str]:
    from perfsuite.run.config import OPTIONS

    found = []
    for at, word in enumerate(words):
        name, _, value = word.partition("=")
        if not name.startswith("--perf"):
            continue
        told = OPTIONS.get(name)
        value = value or next(iter(words[at + 1 :]), "")
        if told is None or ("choices" in told and value not in told["choices"]):
            found.append(f"{name} {value}")
    return found


def _unknown_to_perfsuite(words: Sequence[str]) -> list[str]:
    import typer

    from perfsuite.cli import commands

    command: Any = typer.main.get_command(commands())
    rest = list(words)
    while hasattr(command, "commands") and rest and rest[0] != "--help":
        # history takes a variant where a command's name could stand.
        name = rest.pop(0) if rest[0] in command.commands else "show"
        if name not in command.commands:
            return [rest[0]]
        command = command.commands[name]
    known = {name for each in command.params for name in each.opts} | {"--help"}
    return [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]


def script_of(command: str, shell: Path) -> str:
    """Return a command for bash that finds folder and variables as the one before left them."""
    state = shell.parent / "state"
    before = f"[ -e {state} ] && . {state}"
    after = f"ended=$?; {{ export -p; echo cd $PWD; }} > {state}; exit $ended"
    return f"{before}\n{{\n{command}\n}}\n{after}"


def with_names(command: str, shell: Path) -> str:
    """Put ids where a page has RUN, the newest last, and VARIANT."""
    runs = sorted(path.stem for path in shell.glob("**/.perfsuite/runs/*.jsonl"))
    command = re.sub(r"\bVARIANT\b", shlex.quote(VARIANT), command)
    newest = iter(runs[-len(re.findall(r"\bRUN\b", command)) :])
    return re.sub(r"\bRUN\b", lambda _: next(newest), command)
