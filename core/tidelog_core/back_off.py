"""The delay before a failed operation is retried."""

DOUBLINGS_MAX = 10  # far more than any wait here has room for, and no number that overflows


def back_off_seconds(attempt_count: int, *, first: float, longest: float) -> float:
    """Return ``first``, doubled for each further failed attempt, ``longest`` at most."""
    return min(first * 2.0 ** min(attempt_count, DOUBLINGS_MAX), longest)
