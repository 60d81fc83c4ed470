"""Plots the day. Needs matplotlib, unlike the other modules."""

from __future__ import annotations

from pathlib import Path

from bench.day import bill
from bench.day.hours import Day
from bench.day.scenario import HOUR_S


def draw(day: Day, path: Path) -> bool:
    """Write a PNG; return False if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    hours = range(24)
    figure, axes = plt.subplots(2, 2, figsize=(13, 8), constrained_layout=True)
    traffic, cores, units, dollars = axes.flat
    sums = {
        "produced": [hour.produced_gb for hour in day.hours],
        "sent by all machines": [hour.sent_gb for hour in day.hours],
        "between zones": [sum(hour.across_gb.values()) for hour in day.hours],
    }
    for name, values in sums.items():
        traffic.plot(hours, [gb / HOUR_S for gb in values], label=name)
    traffic.set_title("GB/s")
    cores.plot(hours, [hour.broker_cores_peak for hour in day.hours], label="busiest node's core")
    network = day.scenario.machine.network_gb_per_s
    shares = [hour.machine_out_peak / network for hour in day.hours]
    cores.plot(hours, shares, label="busiest machine's network, of its baseline")
    cores.axhline(1.0, color="grey", linestyle=":")
    cores.set_title("peaks of 10 seconds; 1 is full")
    purposes = sorted({name for hour in day.hours for name in hour.load.writes})
    units.stackplot(
        hours,
        [[hour.load.writes[name] / HOUR_S for hour in day.hours] for name in purposes],
        labels=purposes,
    )
    units.set_title("DynamoDB, write units a second")
    lines = [bill.of_hour(day.scenario, hour) for hour in day.hours]
    dollars.stackplot(
        hours,
        [[one[n].dollars for one in lines] for n in range(len(lines[0]))],
        labels=[line.what for line in lines[0]],
    )
    dollars.set_title("dollars an hour")
    for axis in axes.flat:
        axis.set_xlabel("hour of the day")
        axis.legend(fontsize="small", loc="upper left")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True
