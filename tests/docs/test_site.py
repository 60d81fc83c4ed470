"""The documentation is a site without broken links, and nothing of it is loaded from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tools.places import ROOT


def test_a_strict_build_has_every_page_and_loads_nothing(tmp_path: Path) -> None:
    site = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "-d", site],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    for page in pages:
        name = "index.html" if page.name == "README.md" else f"{page.stem}.html"
        text = (site / page.parent / name).read_text()
        assert not re.findall(r'(?:src=|<link[^>]*href=)"https?://[^"]*', text), page


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    """The build above can fail."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("[gone](gone.md)")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\nsite_dir: site\n")
    built = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 1
    assert "gone.md" in built.stderr
