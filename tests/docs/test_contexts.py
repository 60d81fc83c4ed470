"""``docs/contexts.md`` lists every setting of how to reach a cluster."""

from __future__ import annotations

from tidelog.settings.names import SETTINGS

from tools.places import ROOT


def test_the_page_has_every_setting_as_the_program_has_it() -> None:
    rows = [
        f"| `{setting.name}` | {', '.join(f'`{name}`' for name in setting.also)} | {setting.about} |"
        for setting in SETTINGS
    ]
    assert "\n".join(rows) + "\n" in (ROOT / "docs" / "contexts.md").read_text()
