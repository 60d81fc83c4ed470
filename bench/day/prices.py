"""Prices and sizes that ``tools.aws_cost`` does not have.

On-demand list prices of us-east-1 in US dollars as known on 2026-11-22, without taxes,
discounts and free tiers. Replace them with your own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog_core.cost.counts import machine as machine_item

from tools.aws_cost import MACHINE, PRICES

EBS_GB_MONTH = 0.08  # gp3, with 3,000 IOPS and 125 MB/s
EBS_MB_PER_S_MONTH = 0.04  # gp3, for each MB/s above 125
DYNAMODB_GB_MONTH = 0.25
BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An instance type. Its network is the sustained rate in each direction, GB/s."""

    name: str
    hour: float
    cpus: int
    memory_gb: float
    disk_gb: float  # NVMe instance storage
    network_gb_per_s: float


# Network: EC2's table of baseline bandwidth for storage optimized instances, Gbit/s.
_BASELINES = {"large": 0.781, "xlarge": 1.875, "2xlarge": 4.687, "4xlarge": 9.375}
_TIMES_LARGE = {"large": 1, "xlarge": 2, "2xlarge": 4, "4xlarge": 8}
MACHINES = tuple(
    Machine(
        name=f"i4i.{size}",
        hour=PRICES.per_unit(machine_item(f"i4i.{size}")),
        cpus=MACHINE.cpus * times,
        memory_gb=17.2 * times,
        disk_gb=MACHINE.disk_gb * times,
        network_gb_per_s=_BASELINES[size] / BITS_PER_BYTE,
    )
    for size, times in _TIMES_LARGE.items()
)
# For rivals whose disks are not local, with the baseline of EC2's tables.
M6I_2XLARGE = Machine(
    name="m6i.2xlarge",
    hour=0.384,
    cpus=8,
    memory_gb=34.4,
    disk_gb=0,
    network_gb_per_s=3.125 / BITS_PER_BYTE,
)
C6IN_2XLARGE = Machine(
    name="c6in.2xlarge",
    hour=0.4536,
    cpus=8,
    memory_gb=17.2,
    disk_gb=0,
    network_gb_per_s=12.5 / BITS_PER_BYTE,
)


def machine_named(name: str) -> Machine:
    """Return the instance type. Raises ``ValueError``."""
    for machine in MACHINES:
        if machine.name == name:
            return machine
    raise ValueError(f"{name!r} is none of {', '.join(m.name for m in MACHINES)}")
