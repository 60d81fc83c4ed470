"""Patterns of RE2's syntax: what they match, and that they never take long."""

from __future__ import annotations

import re
import time
from random import Random

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_node.groups.consumer.topic_pattern import (
    PATTERN_SIZE_MAX,
    InvalidPattern,
    TopicPattern,
)

# What both engines understand alike.
ATOMS = (
    *("a", "b", "A", "1", "-", r"\.", ".", "[ab]", "[^a]", "[a-b1]", r"[\d-]", r"\w", r"\d", r"\W"),
    *("(a|b)", "(?:ab|1)", "(?i:a)", "()", "(a|)", "(^a)", "(a$|b)"),
)
EDGES = ("^", "$", r"\b", r"\B")
SIGNS = ("", "", "", "*", "+", "?", "*?", "{2}", "{0,1}", "{1,}")
parts = st.one_of(
    st.tuples(st.sampled_from(ATOMS), st.sampled_from(SIGNS)).map("".join),
    st.sampled_from(EDGES),
)
patterns = st.lists(st.lists(parts, max_size=4).map("".join), min_size=1, max_size=3).map("|".join)


@settings(deadline=None, max_examples=300)
@given(patterns, st.text("abA1-._", min_size=1, max_size=6))
def test_a_pattern_matches_the_names_that_python_says_it_does(pattern: str, name: str) -> None:
    expected = re.compile(pattern, re.ASCII).fullmatch(name) is not None
    assert TopicPattern(pattern).matches(name) == expected


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders"], ["orders-1", "my-orders", "", "Orders"]),
        ("(?i)orders", ["ORDERS", "oRders"], ["order"]),
        ("a(?i)b|c", ["ab", "aB", "C"], ["AB"]),
        ("(?i:a)b", ["Ab"], ["aB"]),
        ("(?i-i)a", ["a"], ["A"]),
        (r"\Qa.b\E+", ["a.b", "a.bb"], ["axb"]),
        (r"\x61\x{62}", ["ab"], ["xb"]),
        ("[[:digit:]]+", ["12"], ["1a"]),
        ("[^[:alpha:]]", ["1"], ["a"]),
        ("[]a]", ["a"], ["b"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("a{,2}", [], ["a", "aa"]),
        ("a{2,3}", ["aa", "aaa"], ["a", "aaaa"]),
        (r"\Aa\z", ["a"], ["b"]),
        ("", [""], ["a"]),
        (".*", ["", "a.b-c_d", "b/ü 1"], ["a\nb"]),
        ("a$", ["a"], ["a\n"]),
        (r"\pL+", ["aü"], ["a1"]),
        ("(?P<n>a)(?<m>b)", ["ab"], ["a"]),
        ("[^a]/[à-ü]+", ["b/ü", "ä/à"], ["a/ü", "b/u"]),
        (r"\D[^\W_][\D1]", [":a:", "x11"], ["1a:", ":_:", ":ü:", ":a2"]),
        ("(?i)Ä[^ö]", ["äa", "Äa"], ["Aa", "äÖ"]),
        (r"[\x{0}-\x{10FFFF}]", ["a", "ü", "\U0001f600"], ["", "ab"]),
    ],
)
def test_a_pattern_matches_whole_names(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    compiled = TopicPattern(pattern)
    assert [name for name in (*matching, *others) if compiled.matches(name)] == matching


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a", "a)", "[a", "a**", "a*??", "*", "a{2}{3}", "(?=a)", "(?!a)", "(?<=a)", r"(a)\1"),
        *("a{1001}", "a{3,2}", "(?P<>a)", "(?P<n", "(?z)a", r"\pQ", "[z-a]", "[[:x:]]", r"\q"),
        *("(?i)*", "\\", r"\x", r"\xg1", r"\x{110000}", "(?", "a" * (PATTERN_SIZE_MAX + 1)),
        *("((a{100}){100}){100}", "(((){1000}){1000}){1000}"),
        *(r"\pL{900}", "(.{1,30}){1,30}", "(?:.*a.{10}){5}|" * 40),
    ],
)
def test_what_is_not_a_pattern_of_re2_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        TopicPattern(pattern)


def test_a_refused_pattern_says_why_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidPattern, match=r"^missing \): \(ü$"):
        TopicPattern("(ü")
    with pytest.raises(InvalidPattern, match="too large"):
        TopicPattern(r"\pL{900}")
    assert capfd.readouterr() == ("", "")


def test_deep_groups_are_understood() -> None:
    depth = PATTERN_SIZE_MAX // 2 - 1
    assert TopicPattern("(" * depth + "a" + ")" * depth).matches("a")


def test_hostile_patterns_take_little_time_for_any_topic_name() -> None:
    """Python's ``re`` takes longer than the universe has for the first of them.

    The names are random, so that nothing found for one of them helps with the next; the last
    two patterns make RE2 give up its cache of states. 100 names take each about 0.1 s.
    """
    random = Random(17)
    names = ["a" * 249, *("".join(random.choices("ab", k=249)) for _ in range(100))]
    for pattern in (
        *("(a*)*b", "(a|aa)+b", "(a{0,30}){0,30}b", "(a?){500}a{499}", ".*a.{500}", ".{1,249}x"),
        *("(?:.*a.{10}){5}|" * 10 + "z", "(?:.*a.{100}){3}|" * 2 + "z"),
    ):
        compiled = TopicPattern(pattern)
        began = time.thread_time()
        for name in names:
            compiled.matches(name)
        assert time.thread_time() - began < 2, pattern


def test_hostile_patterns_take_little_memory() -> None:
    """RE2 would let each take 8 MiB if it were not told otherwise."""
    random = Random(17)
    names = ["".join(random.choices("ab", k=249)) for _ in range(50)]
    before = psutil.Process().memory_info().rss
    for number in range(30):
        compiled = TopicPattern(f".*a.{{500}}{number}")
        for name in names:
            compiled.matches(name)
    assert psutil.Process().memory_info().rss - before < 16 << 20
