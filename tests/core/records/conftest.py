from __future__ import annotations

from hypothesis import settings

# No deadline: the machine may be busy with other tests. A failure prints how to replay it.
settings.register_profile("records", deadline=None, print_blob=True)
settings.load_profile("records")
