"""``python -m bench.secure``: what TLS, ACLs and quotas cost; writes to bench/results/secure.

The figures are ratios within one run: TLS beside Apache Kafka with the same cipher, rules beside a
node without them.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.free_memory import touch_free_memory
from bench.machine_facts import machine_facts
from bench.peers import report, requests
from bench.peers.figures import Case, Figure, spreads
from bench.peers.goals import Goal, judge
from bench.peers.peer import Peer, Tidelog
from bench.peers.run import run_cases
from bench.secure import costs, handshakes
from bench.secure.servers import GuardedTidelog, Tls, TlsKafka, TlsTidelog

_RESULTS = Path(__file__).resolve().parent.parent / "results" / "secure"
_PEERS = {"tidelog": "Tidelog", "kafka": "Kafka", costs.OPEN: "a node without rules"}
_TLS = (costs.TLS, costs.ENCRYPTED)
_FASTEST = (handshakes.WORKLOAD, handshakes.name_of(handshakes.RATES[-1]))

GOALS = (
    Goal("CPU per GB produced over TLS, of Kafka's", *_TLS, "produce_cpu_s_per_gb", 0.7, "kafka"),
    Goal("CPU per GB fetched over TLS, of Kafka's", *_TLS, "fetch_cpu_s_per_gb", 0.7, "kafka"),
    Goal(
        "small requests per CPU-second with 1,000 ACLs and 100 quotas, of those without",
        *(costs.RULES, requests.NAME, "requests_per_cpu_s"),
        0.95,
        costs.OPEN,
        is_at_least=True,
    ),
    Goal(
        "CPU per GB produced with them, of that without",
        *(costs.RULES, costs.BULK, "produce_cpu_s_per_gb"),
        1.05,
        costs.OPEN,
    ),
    Goal(
        "CPU per GB fetched with them, of that without",
        *(costs.RULES, costs.BULK, "fetch_cpu_s_per_gb"),
        1.05,
        costs.OPEN,
    ),
    Goal(
        "handshakes a second, with certificates", *_FASTEST, "handshakes_per_s", 1_000, None, True
    ),
    Goal("p99 of a client that is there meanwhile, ms", *_FASTEST, "p99_ms", 100, None),
)


class _OpenTidelog(Tidelog):
    name = costs.OPEN


def main() -> None:
    """Run the cases; print the goals last."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped
    parser = argparse.ArgumentParser(prog="python -m bench.secure")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds (5)")
    parser.add_argument("--only", choices=(costs.RULES, costs.TLS, handshakes.WORKLOAD))
    parser.add_argument(
        "--openssl",
        metavar="FOLDER",
        help="where libssl.so.3 and libcrypto.so.3 of the node are, if not the machine's",
    )
    arguments = parser.parse_args()
    began, load_before = time.monotonic(), os.getloadavg()[0]
    touch_free_memory()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="bench-secure-") as name:
        folder = Path(name)
        tls = Tls(folder / "tls", node_openssl=arguments.openssl)
        for cases, peers in _matrix(tls):
            wanted = [one for one in cases if arguments.only in (None, one.workload)]
            for peer in peers if wanted else ():
                peer.install()
            for figure in run_cases(wanted, peers, repeats=arguments.repeats, folder=folder):
                figures.append(figure)
                value = f"failed: {figure.problem}" if figure.value is None else figure.value
                where = f"{figure.workload}, {figure.case}, {figure.peer}"
                print(f"{time.monotonic() - began:6.0f} s  {where}: {figure.metric} {value}")
    _RESULTS.mkdir(parents=True, exist_ok=True)
    report.write_csv(figures, _RESULTS / "figures.csv")
    facts = [
        *_facts(arguments.repeats, load_before, time.monotonic() - began),
        f"the node has {_openssl_version(tls.node_variables)}, the clients {_openssl_version({})}",
    ]
    title = "What TLS, ACLs and quotas cost"
    page = report.page(figures, facts, title=title, goals=GOALS, peers=_PEERS)
    (_RESULTS / "report.md").write_text(page)
    print(report.goal_table(judge(spreads(figures), GOALS)))


def _matrix(tls: Tls) -> list[tuple[list[Case], tuple[Peer, ...]]]:
    """Return groups of cases, each with its servers: those of the others would use the core."""
    all_costs = costs.cases(tls)
    return [
        (
            [case for case in all_costs if case.workload == costs.RULES],
            (GuardedTidelog(), _OpenTidelog()),
        ),
        (
            [case for case in all_costs if case.workload == costs.TLS],
            (TlsTidelog(tls), TlsKafka(tls)),
        ),
        (handshakes.cases(tls), (TlsTidelog(tls),)),
    ]


def _facts(repeats: int, load_before: float, seconds: float) -> Sequence[str]:
    return [
        *machine_facts(seconds=seconds, load_before=load_before),
        "servers on one core, all clients on another",
        f"medians of {repeats} rounds (lowest–highest), the servers in turns in each",
        "TLS 1.3 with AES-256-GCM, ECDSA P-256, certificates of both sides",
    ]


def _openssl_version(variables: Mapping[str, str]) -> str:
    program = "import ssl; print(ssl.OPENSSL_VERSION)"
    command, environment = [sys.executable, "-c", program], os.environ | variables
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return ran.stdout.strip()


if __name__ == "__main__":
    main()
