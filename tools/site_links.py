"""A hook of mkdocs: what the site does not contain is named, not linked.

The pages under ``docs`` link to files of the repository, such as ``../ARCHITECTURE.md``. The
site has no address for them, and a strict build refuses links that lead nowhere.
"""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#\s]+)[^)]*\)")
_FILES = re.compile(r"\[([^\]]+)\]\(([\w./-]+\.py)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Return the page's text with its links out of ``docs`` as names of files."""
    depth = page.file.src_uri.count("/")

    def named(found: re.Match[str]) -> str:
        ups = found[0].partition("](")[2].count("../")
        if ups <= depth:
            return found[0]  # It stays within the site.
        title, path = found[1].strip("`"), found[2]
        return f"`{path}`" if title in path else f"{found[1]} (`{path}`)"

    return _FILES.sub(r"`\1`", _OUTSIDE.sub(named, markdown))
