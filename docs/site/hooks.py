"""What mkdocs does for this site beyond its settings: pages made of the code, and reports."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHOWN = {f"reports/{name}/index.html": f"{name}/index.html" for name in ("example", "h100-h200")}
# The theme asks a server for it, where a page is read from a disk; the copy is beside this file.
WORKER = "https://unpkg.com/iframe-worker/shim"
_UPWARD = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([^)]*)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the reference and the reports that are shown."""
    sys.path[:0] = [str(HERE), str(ROOT)]
    from case_pages import case_pages, own_packs
    from mkdocs.structure.files import File
    from reference_pages import reference_pages

    cases = case_pages(own_packs(ROOT))
    for path, text in {**reference_pages(), **cases}.items():
        files.append(File.generated(config, path, content=text))
    # What is shown of another folder is copied whole.
    for path, place in SHOWN.items():
        files.append(File.generated(config, place, content=(ROOT / path).read_text("utf-8")))
    _fill(config["nav"], {path: path for path in cases})
    return files


def _fill(nav: list[Any], pages: dict[str, str]) -> None:
    """Put the pages of the cases where the navigation has an empty place for them."""
    reference = next(entry["Reference"] for entry in nav if "Reference" in entry)
    for entry in reference:
        if "Cases" in entry:
            entry["Cases"] = list(pages)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links out of docs/ to a report's copy, or into the name of the file."""
    depth = page.file.src_uri.count("/")

    def turned(found: re.Match[str]) -> str:
        text, above, path = found.groups()
        if above.count("/") <= depth:
            return found[0]
        if path in SHOWN:
            return f"[{text}]({'../' * depth}{SHOWN[path]})"
        return f"{text} (`{path}`)"

    return _UPWARD.sub(turned, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Let search work from a disk without a network."""
    above = "../" * page.file.dest_uri.count("/")
    return output.replace(WORKER, f"{above}site/vendor/iframe-worker.js")


def on_post_template(output_content: str, **_: Any) -> str:
    """Do the same for pages without a source, such as the one for what is not found."""
    return output_content.replace(WORKER, "site/vendor/iframe-worker.js")
