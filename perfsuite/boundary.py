"""What may come in from outside, and what may reach a person; every limit stands here, once.

Each boundary has one function through which text and values pass, and all use these limits: files
``codec.read_json``, sockets ``wire.decode``, packs ``packs.validity``, the database
``history.reading``, the environment the functions below, and the terminal ``terminal.plain``.
"""

from __future__ import annotations

from unicodedata import category

# Bytes of a file that is read whole, and of a message between our processes.
FILE_BYTES = 512 << 20
MESSAGE_BYTES = 256 << 20
# Characters of a name (of a pack, case, axis value, run), of a text that explains (a reason, a
# note, an exception), and of what a pack writes for the page.
NAME_CHARACTERS = 200
TEXT_CHARACTERS = 4_000
PAGE_CHARACTERS = 100_000
# Levels of lists and mappings in a file or message, and digits of a number.
LEVELS = 100
DIGITS = 300

# In the environment of git's hooks these name the repository that the hook is of.
REPOSITORY_NAMES = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_DIR",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_WORK_TREE",
    }
)

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Escape sequences, what turns the direction of text, halves of characters, line separators.
CONTROLS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def plain(text: str, *, most: int = TEXT_CHARACTERS, instead: str = REPLACEMENT) -> str:
    """Return text that any file, page and terminal can hold.

    No control characters, escape sequences, marks that turn the direction of reading, or halves of
    characters: ``instead`` stands in their place. Of a text of more than ``most`` characters the
    middle is left out, which the text says.
    """
    if len(text) > most:
        left_out = len(text) - most
        told = f" [{left_out} characters left out] "
        half = most // 2
        text = f"{text[:half]}{told}{text[-half:]}"
    if text.isprintable():
        return text
    odd = {c for c in set(text) - {"\n", "\t"} if category(c) in CONTROLS}
    return text.translate(dict.fromkeys(map(ord, odd), instead))
