"""Names of certificates and their users, beside Java's and Kafka's own classes."""

from __future__ import annotations

import base64
import contextlib
import datetime
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.errors import InvalidConfig
from tidelog_node.security.distinguished_name import distinguished_name
from tidelog_node.security.principal_mapping import RULES_MAX, parse_principal_mapping

from tools import kafka_java
from tools.java_options import QUICK_JAVA

JAVA, CLASS_PATH = shutil.which("java"), kafka_java.class_path()
NAMES, RULES = 200, 300
SEED = random.SystemRandom().randrange(2**32)

KEY = ec.generate_private_key(ec.SECP256R1())
OIDS = (
    *("2.5.4.3", "2.5.4.7", "2.5.4.8", "2.5.4.10", "2.5.4.11", "2.5.4.9"),
    *("0.9.2342.19200300.100.1.25", "0.9.2342.19200300.100.1.1"),
    *("2.5.4.4", "2.5.4.5", "2.5.4.12", "1.2.840.113549.1.9.1", "2.999.1", "1.3.6.1.4.1.99999"),
)
TYPES = (
    *(_ASN1Type.UTF8String, _ASN1Type.PrintableString, _ASN1Type.IA5String),
    *(_ASN1Type.T61String, _ASN1Type.BMPString, _ASN1Type.UniversalString),
)
PIECES = (
    "a",
    "Z",
    "7",
    " ",
    "  ",
    "#",
    ",",
    "=",
    "+",
    "<",
    ">",
    ";",
    '"',
    "\\",
    "/",
    "\0",
    "\r",
    "-",
)
PRINTABLE_PIECES = ("a", "Z", "7", " ", "  ", ",", "=", "+", "/", "-", "'", "?")
PIECES_OF = {
    _ASN1Type.PrintableString: PRINTABLE_PIECES,
    _ASN1Type.IA5String: PIECES,
    _ASN1Type.T61String: PIECES,
}
WIDE_PIECES = (*PIECES, "é", "ß", "漢", "\n", "\u2028")


def certificate(name: x509.Name) -> bytes:
    """Return a certificate (DER) with the subject."""
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "issuer")]),
        subject_name=name,
        public_key=KEY.public_key(),
        serial_number=1,
        not_valid_before=now,
        not_valid_after=now + datetime.timedelta(days=1),
    )
    made = builder.sign(KEY, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.DER)


def random_name(chance: random.Random) -> x509.Name:
    parts = []
    for _ in range(chance.randint(1, 5)):
        kinds = chance.sample(OIDS, chance.choice((1, 1, 1, 2, 3)))
        parts.append(x509.RelativeDistinguishedName([attribute(chance, oid) for oid in kinds]))
    return x509.Name(parts)


def attribute(chance: random.Random, oid: str) -> x509.NameAttribute:
    kind = chance.choice(TYPES)
    pieces = PIECES_OF.get(kind, WIDE_PIECES)
    text = "".join(chance.choices(pieces, k=chance.randint(1, 8)))
    return x509.NameAttribute(x509.ObjectIdentifier(oid), text, kind, _validate=False)


PATTERNS = (
    *(".*", "(.*)", "^CN=(.*?),OU=(.*?),.*$", "CN=([^,]*).*", "(CN=)([^,]*)(.*)", "", "x*"),
    *(r"^cn=\w+.*", "(C|O|CN)=.*", ".*O=Acme.*", "(a)|(.*)", r"CN=a\/b", "[A-Z]+=.*", "("),
)
REPLACEMENTS = ("", "x", "$1", "$1@$2", "$2$1", "$12", "$9", r"\$1", r"a\/b", "$0", "User-$1", "$3")
SUBJECTS = (
    *("CN=alice,OU=Sales,O=Acme", "CN=Ünal İnal,O=Straße", "O=Acme,CN=bob", "CN=a/b", "", "x"),
    *("CN=alice", "cn=alice,O=x", "C=DE,CN=a\\,b", "CN=xaxax"),
)


def random_rules(chance: random.Random) -> str:
    rules = []
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.15:
            rules.append("DEFAULT")
            continue
        case = chance.choice(("", "", "L", "U"))
        rules.append(f"RULE:{chance.choice(PATTERNS)}/{chance.choice(REPLACEMENTS)}/{case}")
    return chance.choice((",", ", ", " , ")).join(rules)


@pytest.fixture(scope="module")
def chance() -> random.Random:
    print(f"seed {SEED}")
    return random.Random(SEED)


@pytest.fixture(scope="module")
def certificates(chance: random.Random) -> list[bytes]:
    return [certificate(random_name(chance)) for _ in range(NAMES)]


@pytest.fixture(scope="module")
def mappings(chance: random.Random) -> list[tuple[str, str]]:
    return [(random_rules(chance), chance.choice(SUBJECTS)) for _ in range(RULES)]


@pytest.fixture(scope="module")
def answers(
    certificates: list[bytes],
    mappings: list[tuple[str, str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str | None]:
    """What Java says of each certificate, then Kafka of each mapping; ``None``: refused."""
    if JAVA is None or CLASS_PATH is None:
        pytest.skip("needs java and Kafka's jars (make tools)")
    asked = tmp_path_factory.mktemp("names") / "asked"
    lines = [f"name {base64.b64encode(der).decode()}" for der in certificates]
    lines += [f"rule {encoded(rules)} {encoded(name)}" for rules, name in mappings]
    asked.write_text("\n".join(lines))
    classes = kafka_java.compiled(Path(__file__).with_name("JavaNames.java"))
    command = [JAVA, *QUICK_JAVA, "-cp", f"{CLASS_PATH}:{classes}", "JavaNames", str(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answered = done.stdout.splitlines()
    assert len(answered) == len(lines)
    return iter([None if a == "-" else base64.b64decode(a[1:]).decode() for a in answered])


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def mapped(rules: str, name: str) -> str | None:
    """Raises ``InvalidConfig`` also for rules with which Kafka starts and then fails."""
    return parse_principal_mapping(rules).principal_of(name)


def is_refused(rules: str) -> bool:
    with contextlib.suppress(InvalidConfig):
        parse_principal_mapping(rules)
        return False
    return True


def test_names_and_users_are_those_of_java_and_kafka(
    answers: Iterator[str | None], certificates: list[bytes], mappings: list[tuple[str, str]]
) -> None:
    for der in certificates:
        assert distinguished_name(der) == next(answers), f"seed {SEED}: {der.hex()}"
    compared = [
        (rules, name, mapped(rules, name), theirs)
        for (rules, name), theirs in zip(mappings, answers, strict=True)
        if not is_refused(rules)
    ]
    assert [case for case in compared if case[2] != case[3]] == [], f"seed {SEED}"
    assert sum(user is not None for *_, user in compared) > RULES / 10


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", "CN=alice,O=Acme", "CN=alice,O=Acme"),
        ("RULE:^CN=(.*?),.*$/$1/", "CN=alice,O=Acme", "alice"),
        ("RULE:^CN=(.*?),OU=Web,.*$/$1/,RULE:^CN=(.*?),.*$/$1/U", "CN=al,OU=Ops,O=A", "AL"),
        ("RULE:.*/x/", "CN=alice", "xx"),
        ("RULE:^CN=bob$/bob/", "CN=alice", None),
        ("RULE:CN=(.*)/$1$2/L", "CN=ALICE", "alice$2"),
    ],
)
def test_first_rule_that_matches_the_whole_name_makes_the_user(
    rules: str, name: str, user: str | None
) -> None:
    assert parse_principal_mapping(rules).principal_of(name) == user


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("RULE:a/b", "must be DEFAULT or RULE"),
        ("alice", "must be DEFAULT or RULE"),
        ("DEFAULT RULE:a/b/", "must be DEFAULT or RULE"),
        ("RULE:(/b/", "missing"),
        ("RULE:(?=a)b/b/", "not RE2's"),
        (r"RULE:(a)\1/b/", "not RE2's"),
        ("RULE:a.*/$1/", "needs a group"),
        ("RULE:(a).*/$x/", "needs a group"),
        (",".join(["DEFAULT"] * (RULES_MAX + 1)), f"allowed are {RULES_MAX}"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_text(rules: str, problem: str) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        parse_principal_mapping(rules)


def test_a_hostile_name_takes_no_long_time() -> None:
    """Java's own engine takes exponential time for this pattern and name."""
    mapping = parse_principal_mapping("RULE:(a*)*b/$1/")
    began = time.thread_time()
    assert mapping.principal_of("a" * 16_000) is None
    assert time.thread_time() - began < 1.0


def test_a_mapped_name_has_a_bound() -> None:
    mapping = parse_principal_mapping(f"RULE:a/{'b' * 1000}/,RULE:(a|b)*/{'$0' * 10}c/")
    with pytest.raises(PermissionError, match="65536"):
        mapping.principal_of("a" * 30_000)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate_are_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        distinguished_name(data)


def test_a_certificate_that_is_cut_off_is_an_error(chance: random.Random) -> None:
    der = certificate(random_name(chance))
    for end in range(len(der)):
        with pytest.raises(ValueError):  # noqa: PT011
            distinguished_name(der[:end])
