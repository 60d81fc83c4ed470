"""KafkaJS from npm."""

from __future__ import annotations

from pathlib import Path

from tools.places import TOOLS_DIR, require, run

VERSION = "2.2.4"
_ROOT = TOOLS_DIR / "kafkajs"
# Codecs in JavaScript or WebAssembly: those with native parts need a compiler to install.
_CODECS = ("kafkajs-snappy@1.1.0", "lz4js@0.2.0", "zstd-codec@0.1.5")


def install() -> None:
    """Make ``modules`` work."""
    if modules() is not None:
        return
    _ROOT.mkdir(parents=True, exist_ok=True)
    packages = (f"kafkajs@{VERSION}", *_CODECS)
    run([require("npm"), "install", "--no-audit", "--no-fund", "--prefix", _ROOT, *packages])


def modules() -> Path | None:
    """Return the value of Node's ``NODE_PATH``, or ``None`` if KafkaJS is missing."""
    folder = _ROOT / "node_modules"
    return folder if (folder / "kafkajs").is_dir() else None
