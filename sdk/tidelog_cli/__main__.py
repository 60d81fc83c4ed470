"""``python -m tidelog_cli`` is the command ``tidelog``."""

from tidelog_cli.main import app

app()
