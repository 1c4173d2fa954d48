"""A made-up study with known truths: 7 workloads, 8 environments, gaps, failures and flags.

The names are made up on purpose where they can be: the report must not know any of them.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd

from nearmetal import analysis
from nearmetal.report.findings import Findings
from nearmetal.workloads.base import Metric

SIZES = [2**power for power in range(5, 24)]
FULL, ONE = "native", "native(cpus=1)"

METRICS = {
    ("presta-com", "bandwidth"): Metric(
        "bandwidth", "MB/s", "higher", "rate", "Bytes moved per second between two processes",
        axis="bytes", axis_scale="log2", scale="log", headline=True),
    ("presta-com", "op_time"): Metric(
        "op_time", "us", "lower", "time", "Mean over tests of the longest operation",
        axis="bytes", axis_scale="log2", scale="log"),
    ("presta-laten", "latency"): Metric(
        "latency", "us", "lower", "time", "Ping-pong time, one way, of an 8-byte message",
        axis="processes", axis_scale="linear", headline=True),
    ("linpack", "total"): Metric("total", "s", "lower", "time", "Factor and solve", headline=True),
    ("linpack", "factor"): Metric("factor", "s", "lower", "time", "LU factorisation"),
    ("linpack", "rate"): Metric("rate", "MFLOP/s", "higher", "rate", "Floating-point rate"),
    ("dgemm", "rate"): Metric("rate", "GFLOP/s", "higher", "rate", "Matrix product", headline=True),
    ("stream", "bandwidth"): Metric(
        "bandwidth", "GB/s", "higher", "rate", "Memory bandwidth", headline=True),
    ("osbench", "time"): Metric(
        "time", "ns", "lower", "time", "Median time of one operation", scale="log", headline=True),
    ("osbench", "tail"): Metric(
        "tail", "ns", "lower", "time", "99th percentile of one operation", scale="log"),
    ("boot", "time"): Metric("time", "s", "lower", "time", "Asking to first answer", scale="log",
                             headline=True),
    ("boot", "memory"): Metric("memory", "MiB", "lower", "size", "Host memory", headline=True),
}

#: label: (path, role, matched, substrate, cost of arithmetic, of the kernel, of the network)
LABELS = {
    FULL: (FULL, "baseline", FULL, "host CPU", 1.0, 1.0, 1.0),
    "native (A/A)": (FULL, "aa", FULL, "host CPU", 1.0, 1.0, 1.0),
    ONE: (ONE, "baseline", ONE, "host CPU", 1.0, 1.0, 1.0),
    "container": ("container", "subject", FULL, "host CPU", 1.0, 1.03, 1.001),
    "gvisor": ("gvisor", "subject", FULL, "host CPU", 1.01, 6.0, 3.2),
    "uml": ("uml", "subject", ONE, "host CPU", 0.985, 11.0, 4.7),
    "qemu(io=virtio)": ("qemu(io=virtio)", "subject", FULL, "TCG", 19.0, 9.0, 28.0),
    "qemu(io=emulated)": ("qemu(io=emulated)", "subject", FULL, "TCG", 19.5, 9.3, 95.0),
}


def _points(workload: str, metric: str) -> list[tuple[dict, float, str]]:
    """(point, value on the baseline, which cost applies)."""
    if workload == "presta-com":
        times = {b: 6.0 + b / 4200.0 for b in SIZES}
        both = [("one way", 1.0), ("both ways", 0.7)]
        if metric == "op_time":
            return [({"bytes": b, "direction": d}, times[b] / k, "net")
                    for d, k in both for b in SIZES]
        return [({"bytes": b, "direction": d}, b / times[b] / k, "net")
                for d, k in both for b in SIZES]
    if workload == "presta-laten":
        return [({"processes": n}, 5.0 + 2.2 * n, "net") for n in (2, 4, 6, 8, 12, 16)]
    if workload == "stream":
        return [({"kernel": k}, v, "cpu") for k, v in
                (("copy", 11.2), ("scale", 10.9), ("add", 12.1), ("triad", 12.0))]
    if workload == "osbench":
        scale = 1.0 if metric == "time" else 2.6
        return [({"operation": k}, v * scale, "kernel") for k, v in
                (("system call", 190), ("page fault", 610), ("mmap and munmap", 2100),
                 ("futex hand-off", 4800), ("context switch", 2600), ("fork and exec", 612000))]
    single = {"total": 6.213, "factor": 6.19, "rate": 2890.0, "time": 0.031, "memory": 11.0}
    if workload == "dgemm":
        return [({}, 41.7, "cpu")]
    return [({}, single[metric], "boot" if workload == "boot" else "cpu")]


BOOT = {"container": (4.0, 1.4), "gvisor": (14.0, 4.1), "uml": (90.0, 9.0),
        "qemu(io=virtio)": (230.0, 21.0), "qemu(io=emulated)": (410.0, 22.0)}


def _truth(label: str, metric: Metric, value: float, part: str, point: dict) -> float:
    cpu, kernel, net = LABELS[label][4:]
    if part == "boot":
        factor = BOOT.get(label, (1.0, 1.0))[metric.name == "memory"]
        return value * factor
    factor = {"cpu": cpu, "kernel": kernel, "net": net}[part]
    if part == "net" and "bytes" in point:
        factor = 1 + (factor - 1) / (1 + point["bytes"] / 300000)
    return value / factor if metric.kind == "rate" else value * factor


def _missing(label: str, workload: str, point: dict) -> bool:
    if workload == "presta-laten" and label == "uml":
        return True
    return workload == "presta-com" and label == "qemu(io=emulated)" and point["bytes"] > 2**20


def frame(blocks: int = 10, seed: int = 7, noise: float = 0.012) -> pd.DataFrame:
    """The measurements, one a row, as ``nearmetal.load`` gives them."""
    random = np.random.default_rng(seed)
    rows, run = [], 0
    names = list(dict.fromkeys(workload for workload, _ in METRICS))
    for block in range(blocks):
        for workload in names:
            for position, label in enumerate(random.permutation(list(LABELS))):
                run += 1
                wobble = random.normal(0, noise)
                rows += _rows(random, run, block, position, str(label), workload, wobble)
    return pd.DataFrame(rows)


def _rows(random, run, block, position, label, workload, wobble) -> list[dict]:
    path, role, matched, substrate = LABELS[label][:4]
    made = []
    for (owner, _), metric in METRICS.items():
        if owner != workload:
            continue
        for point, value, part in _points(workload, metric.name):
            if _missing(label, workload, point):
                continue
            truth = _truth(label, metric, value, part, point)
            spread = 4 if part == "kernel" else 1
            made.append({
                "run": run, "study": "synthetic", "block": block, "position": position,
                "environment": path, "role": role, "label": label, "matched": matched,
                "substrate": substrate, "workload": workload,
                "params": '{"n":3000}' if workload == "linpack" else "{}",
                "metric": metric.name, "unit": metric.unit, "better": metric.better,
                "kind": metric.kind, "point": json.dumps(point, separators=(",", ":"),
                                                         sort_keys=True),
                "value": truth * math.exp(wobble + random.normal(0, 0.006 * spread)),
                "flags": "clock" if label == "qemu(io=emulated)" and block in (2, 5) else "",
                "started": f"2026-11-21T06:{block:02d}:{position:02d}+00:00",
                "host_ns": 1_200_000_000, "machine_ns": 1_199_000_000,
                "workload_ns": 1_100_000_000})
    return made


def runs(measurements: pd.DataFrame) -> pd.DataFrame:
    """All runs: those of the frame, and the failed ones."""
    columns = ["run", "block", "position", "environment", "role", "label", "workload", "params",
               "started", "host_ns"]
    good = measurements[columns].drop_duplicates("run").assign(status="ok", reason="", console="")
    last = int(good.run.max())
    bad = pd.DataFrame([
        {"run": last + 1 + n, "block": n, "position": 3, "environment": "uml", "role": "subject",
         "label": "uml", "workload": "presta-laten", "params": "{}",
         "started": "2026-11-21T06:09:00+00:00", "host_ns": 60_000_000_000,
         "status": "timeout", "reason": "No answer in 60 s.",
         "console": "Linux version 6.1.0\n<script>alert('console')</script>\n"
                    "INFO: task presta-laten:31 blocked for more than 20 seconds"}
        for n in range(3)])
    return pd.concat([good, bad], ignore_index=True)


def environments() -> list[dict]:
    """All environments, one that could not run too."""
    rows = []
    for label, (path, role, matched, substrate, *_) in LABELS.items():
        one = label in (ONE, "uml")
        rows.append({
            "path": path, "label": label, "role": role, "matched": matched, "state": "ready",
            "reason": "", "remedy": "", "substrate": substrate,
            "boot_s": 0.031 * BOOT.get(label, (1,))[0],
            "facts": json.dumps({
                "cpus": 1 if one else 2, "memory_mib": None if "native" in label else 1024,
                "kernel": "6.1.0-41-amd64" if "qemu" in label else "6.18.5",
                "clocksource": "hpet" if "qemu" in label else "tsc",
                "network": "tap" if "qemu" in label else "veth",
                **({"accel": "tcg"} if "qemu" in label else {})})})
    rows.append({
        "path": "qemu(accel=kvm, io=virtio)", "label": "qemu(accel=kvm, io=virtio)",
        "role": "subject", "matched": FULL, "state": "refused", "boot_s": None, "facts": "{}",
        "reason": "/dev/kvm opens, but takes 0.91 us an instruction: it emulates every one.",
        "remedy": "Run on a machine with hardware virtualization, or ask for accel=tcg."})
    return rows


STUDY_TEXT = '''\
title = "A made-up study <b>of nothing</b>"
baseline = "native"
environments = ["native", "container", "gvisor", "uml", "qemu(io=virtio)", "qemu(io=emulated)"]

[statistics]
margin = 0.02
target = 0.02
min_blocks = 5
max_blocks = 20
'''


def findings(blocks: int = 10, noise: float = 0.012) -> Findings:
    """The whole study, analysed."""
    measurements = frame(blocks, noise=noise)
    return Findings(
        title="What virtualization costs here", frame=measurements,
        summary=analysis.summarize(measurements), comparison=analysis.compare(measurements),
        runs=runs(measurements), environments=environments(),
        study={"name": "synthetic", "text": STUDY_TEXT, "seed": 7,
               "title": "A made-up study <b>of nothing</b>",
               "settings": {"margin": 0.02, "target": 0.02, "min_blocks": 5, "max_blocks": 20,
                            "protocol": "all", "confidence": 0.95}},
        facts={"host": "lab", "cpu_model": "Made-up CPU @ 2.60GHz", "cpus": 2, "smt": False,
               "memory_mib": 24576, "kernel": "6.18.5", "clocksource": "tsc",
               "load_1min": 0.21, "mitigations": {"meltdown": "Not affected", "mds": "Cleared"}},
        overhead_share=0.184, seed=7, started="2026-11-21T06:00:00+00:00",
        finished="2026-11-21T06:11:42+00:00", metrics=METRICS)
