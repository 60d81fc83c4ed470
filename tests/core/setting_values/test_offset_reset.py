"""What ``share.auto.offset.reset`` may say. The cases were put to Apache Kafka 4.1 too."""

from __future__ import annotations

import pytest
from tidelog_core.setting_values.offset_reset import OffsetReset, parse_offset_reset

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "reset"),
    [
        ("earliest", OffsetReset("earliest")),
        ("latest", OffsetReset("latest")),
        ("by_duration:PT1H", OffsetReset("by_duration", HOUR_MS)),
        ("by_duration:pt1h", OffsetReset("by_duration", HOUR_MS)),
        ("by_duration:P1D", OffsetReset("by_duration", 24 * HOUR_MS)),
        ("by_duration:PT0S", OffsetReset("by_duration", 0)),
        ("by_duration:PT1H-30M", OffsetReset("by_duration", HOUR_MS // 2)),
        ("by_duration:-PT-1M", OffsetReset("by_duration", 60_000)),
        ("by_duration:PT2S", OffsetReset("by_duration", 2000)),
        ("by_duration:PT1.0055S", OffsetReset("by_duration", 1005)),
        ("by_duration:PT1M-0.5S", OffsetReset("by_duration", 59_500)),
        ("by_duration:P2DT3H4M5.5S", OffsetReset("by_duration", 51 * HOUR_MS + 245_500)),
    ],
)
def test_a_reset_is_read_as_kafka_reads_it(text: str, reset: OffsetReset) -> None:
    assert parse_offset_reset(text) == reset


@pytest.mark.parametrize(
    "text",
    [
        *("", "none", "EARLIEST", "by_duration", "By_Duration:PT1S", "by_duration:"),
        *(
            f"by_duration:{duration}"
            for duration in (
                *("xx", "P", "PT", "P1DT", "1H", "P1Y", "P1W", "P1H", "PT1D", "PT1H ", "PT1.5H"),
                *(
                    "-PT1H",
                    "PT-1H",
                    "PT-1H2M",
                    "PT.5S",
                    "PT1.0123456789S",
                    "PT\u0661H",
                    "P" + "9" * 30 + "D",
                ),
            )
        ),
    ],
)
def test_what_is_no_reset_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be earliest, latest or by_duration"):
        parse_offset_reset(text)
