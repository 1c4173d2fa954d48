"""Carry out a plan: boot, run, record, and clean up; continue where a killed lab stopped.

The runner knows machines and workloads only through their base classes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from nearmetal import clock
from nearmetal.errors import CannotRun, MachineFailed, NearmetalError, WorkloadFailed
from nearmetal.machines.base import Completed
from nearmetal.plan import Participant, Plan, Step, still_wanted
from nearmetal.progress import Estimator
from nearmetal.store import RunRecord, Store, now
from nearmetal.study import Item
from nearmetal.workloads.base import Measurement

REBOOTS = 3  # an environment that dies so often in a row is given up
CONSOLE_KEPT = 64 * 1024
STEAL_LIMIT = 0.01


Reader = Callable[[RunRecord], Iterable[Measurement]]


class Boots(Protocol):
    """Boots a participant's cluster (:class:`nearmetal.booter.Booter`, or a fake one)."""

    def boot(self, participant: Participant, size: int, *, keep_console: bool = True) -> Any: ...


@dataclass
class Summary:
    """How a session ended. ``refused``: label -> (reason, remedy)."""

    runs: int = 0
    failed: list[str] = field(default_factory=list)
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)
    given_up: dict[str, str] = field(default_factory=dict)
    stopped_by: str = ""

    @property
    def exit_status(self) -> int:
        """0: all that can run here ran; 1: a run failed or a machine had to be given up."""
        return 1 if self.failed or self.given_up else 0


class ClusterSite:
    """A cluster as a workload sees it (:class:`nearmetal.workloads.base.Site`)."""

    def __init__(self, cluster: Any, participant: Participant, boots: Boots):
        self._cluster, self._participant, self._boots = cluster, participant, boots
        self.size, self.cpus = len(cluster.machines), participant.shape.cpus

    def run(self, argv, *, timeout: float) -> Completed:
        return self._cluster.run(argv, timeout=timeout)

    def mpi(self, argv, *, ranks: int, timeout: float) -> Completed:
        return self._cluster.mpi(argv, ranks=ranks, timeout=timeout)

    def boot(self) -> tuple[float, int | None]:
        started = time.monotonic()
        cluster = self._boots.boot(self._participant, 1, keep_console=False)
        try:
            machine = cluster.machines[0]
            answer = machine.run(["true"], timeout=60)
            seconds = time.monotonic() - started
            if answer.status != 0:
                raise MachineFailed("The machine booted, but its first command failed.")
            return seconds, machine.memory_bytes()
        finally:
            cluster.down()


class Runner:
    """Carries out ``plan`` into ``store``. ``watch`` makes an observer sampled beside each run:
    an object with ``start()`` and ``stop() -> dict``."""

    def __init__(self, plan: Plan, store: Store, boots: Boots, progress: Any,
                 watch: Callable[[], Any]):
        self.plan, self.store, self.boots, self.progress = plan, store, boots, progress
        self.watch = watch
        self.up: dict[str, Any] = {}
        self.deaths: dict[str, int] = {}
        self.summary = Summary()
        self.done = store.done()
        stats = plan.study.statistics
        self.estimator = Estimator(plan, stats.time_limit)
        self._workload_s, self._started = 0.0, time.monotonic()

    def run(self) -> Summary:
        """All blocks, to the end; machines are ended whatever happens."""
        session = self.store.begin_session()
        try:
            self._announce()
            if self._pending():
                self._boot_all()
            self.progress.watch(self.estimator)
            self._blocks(session)
        finally:
            self._down_all()
            with suppress(NearmetalError):
                self._tick(session)
        return self.summary

    def _tick(self, session: int) -> None:
        self.store.tick_session(session, time.monotonic() - self._started, self._workload_s)

    def _announce(self) -> None:
        for item in self.plan.study.items:
            self.store.add_metrics(item.name, item.workload.metrics)
        for one in self.plan.participants:
            state, reason, remedy = "planned", "", ""
            try:
                one.environment.check()
            except CannotRun as error:
                state, reason, remedy = "refused", error.message, error.remedy
                self.summary.refused[one.label] = (reason, remedy)
                self.estimator.drop(one.label)
                self.progress.say(f"{one.label}: cannot run here: {reason} {remedy}".rstrip())
            self.store.put_environment(
                label=one.label, path=one.path, role=one.role, matched=one.matched,
                substrate=one.environment.substrate(), cpus=one.shape.cpus,
                memory_mib=one.shape.memory_mib, state=state, reason=reason, remedy=remedy)

    def _size(self, participant: Participant) -> int:
        return max(item.machines for item in self.plan.study.items
                   if self.plan.takes_part(participant, item))

    def _boot_all(self) -> None:
        wanted = [one for one in self.plan.participants if one.label not in self.summary.refused]
        self.progress.say(f"booting {len(wanted)} environments")
        with ThreadPoolExecutor(max_workers=4) as pool:
            for _ in pool.map(self._boot_quietly, wanted):
                pass

    def _boot_quietly(self, participant: Participant) -> None:
        """Boot, and record how it went; a failure is tried again when its turn comes."""
        started = time.monotonic()
        try:
            cluster = self.boots.boot(participant, self._size(participant))
            facts = cluster.machines[0].facts()
        except CannotRun as error:
            self.summary.refused[participant.label] = (error.message, error.remedy)
            self.estimator.drop(participant.label)
            self._state(participant, "refused", error.message, error.remedy)
            self.progress.say(f"{participant.label}: cannot run here: {error}")
            return
        except Exception as error:  # whatever a machine dies of is its own failure
            self._died(participant, f"did not boot: {error}")
            return
        took = time.monotonic() - started
        self.up[participant.label] = cluster
        self._state(participant, "ready", boot_s=took, facts=facts)
        self.progress.say(f"{participant.label}: up in {took:.1f} s")

    def _state(self, participant: Participant, state: str, reason: str = "", remedy: str = "",
               **more: Any) -> None:
        self.store.put_environment(label=participant.label, state=state, reason=reason,
                                   remedy=remedy, **more)

    def _died(self, participant: Participant, reason: str) -> None:
        label = participant.label
        cluster = self.up.pop(label, None)
        if cluster is not None:
            with suppress(Exception):
                cluster.down()
        self.deaths[label] = self.deaths.get(label, 0) + 1
        self.progress.say(f"{label}: {reason}")
        if self.deaths[label] >= REBOOTS:
            self.summary.given_up[label] = reason
            self.estimator.drop(label)
            self._state(participant, "failed", f"given up after {REBOOTS} failures: {reason}",
                        "See the console in the machines folder of the results.")

    def _cluster(self, participant: Participant) -> Any:
        cluster = self.up.get(participant.label)
        if cluster is not None and not cluster.alive():
            self._died(participant, "a machine went away between runs")
            cluster = None
        if cluster is None and participant.label not in self.summary.given_up:
            self._boot_quietly(participant)
            cluster = self.up.get(participant.label)
        return cluster

    def _blocks(self, session: int) -> None:
        study, limit = self.plan.study, self.plan.study.statistics.time_limit
        wanted, number = list(study.items), 0
        while wanted:
            for step in self.plan.block(number, wanted):
                self._step(step)
                self._tick(session)
            number += 1
            self.progress.block(number - 1, len(self.done))
            late = limit is not None and time.monotonic() - self._started > limit
            decided = self._still_wanted(number, late)
            for item in wanted:
                if item not in decided:
                    self.estimator.enough(item.name, item.params)
            if late and not self.summary.stopped_by:
                self.summary.stopped_by = f"the study's time limit ({limit:.0f} s)"
            wanted = decided

    def _still_wanted(self, blocks: int, late: bool) -> list[Item]:
        """Decided on the blocks so far alone, so that a resumed study decides as it did before."""
        frame = self.store.frame()
        return still_wanted(self.plan.study, frame[frame["block"] < blocks], blocks, late)

    def _pending(self) -> bool:
        """Whether a run is left to be made: a finished study needs no machine."""
        wanted, number = list(self.plan.study.items), 0
        while wanted:
            if any(step.key not in self.done for step in self.plan.block(number, wanted)
                   if step.participant.label not in self.summary.refused):
                return True
            number += 1
            wanted = self._still_wanted(number, late=False)
        return False

    def _step(self, step: Step) -> None:
        label = step.participant.label
        if step.key in self.done:
            self.estimator.finished(step, None)
            return
        if label in self.summary.refused:
            return
        self.progress.begin(step)
        started = time.monotonic()
        record, read = self._attempt(step)
        self.store.add_run(record, read)
        self.done.add(step.key)
        self.summary.runs += 1
        took = time.monotonic() - started
        self.estimator.finished(step, took)
        if record.status != "ok":
            self.summary.failed.append(
                f"{label}, {step.item.name}, block {step.block + 1}: {record.reason}")
        self.progress.end(step, record.status, record.reason, took)

    def _attempt(self, step: Step) -> tuple[RunRecord, Reader | None]:
        """One run; always a record. A machine's death is the run's failure, not the study's."""
        record = RunRecord(step.block, step.position, step.participant.label, step.item.name,
                           step.item.params, "failed", now(),
                           argv=tuple(step.item.workload.command()))
        if step.participant.label in self.summary.given_up:
            record.status, record.reason = "refused", "the environment was given up"
            return record, None
        cluster, fresh = None, step.item.fresh
        try:
            cluster = (self.boots.boot(step.participant, step.item.machines) if fresh
                       else self._cluster(step.participant))
            if cluster is None:
                record.reason = "no machine: it did not boot"
                return record, None
            return self._measure(step, cluster, record)
        except NearmetalError as error:
            record.reason = str(error)
        except Exception as error:  # a fault of ours or of a library: the run's, with its name
            record.reason = f"{type(error).__name__}: {error}"
        finally:
            if fresh and cluster is not None:
                with suppress(Exception):
                    cluster.down()
        self._keep_console(cluster, record)
        if cluster is not None and not fresh and not _alive(cluster):
            self._died(step.participant, f"machine lost during {step.item.name}: {record.reason}")
        return record, None

    def _measure(self, step: Step, cluster: Any, record: RunRecord
                 ) -> tuple[RunRecord, Reader | None]:
        workload, site = step.item.workload, ClusterSite(cluster, step.participant, self.boots)
        observer = self.watch()
        first = clock.read(cluster.machines[0])
        observer.start()
        completed = workload.execute(site, step.item.timeout)
        record.observed = observer.stop()
        record.stdout, record.stderr = completed.stdout, completed.stderr
        record.exit_status, record.host_ns = completed.status, completed.host_ns
        record.machine_ns = completed.machine_ns
        self._workload_s += completed.host_ns / 1e9
        if completed.timed_out:
            record.status = "timeout"
            record.reason = f"cut off after {step.item.timeout:.0f} s"
        if completed.timed_out or completed.status != 0:
            self._keep_console(cluster, record)
            if not _answers(cluster):
                self._died(step.participant, f"machine lost during {workload.name}")
        if completed.timed_out:
            return record, None
        agreement = None
        if completed.status == 0:
            agreement = clock.compare(first, clock.read(cluster.machines[0]))
            record.clock_ratio = agreement.ratio if agreement else None
        self.deaths[step.participant.label] = 0
        return record, lambda kept: _read(workload, kept, agreement)

    def _keep_console(self, cluster: Any, record: RunRecord) -> None:
        parts = []
        for machine in getattr(cluster, "machines", []):
            console = machine.console
            with suppress(OSError):
                if console is not None:
                    parts.append(console.read_bytes()[-CONSOLE_KEPT:])
        record.console = b"\n".join(parts)

    def _down_all(self) -> None:
        clusters, self.up = list(self.up.values()), {}
        with ThreadPoolExecutor(max_workers=8) as pool:
            for cluster in clusters:
                pool.submit(_down, cluster)


def _read(workload: Any, record: RunRecord, agreement: clock.Agreement | None
          ) -> tuple[Measurement, ...]:
    """Settle a stored run: its status, its facts and its measurements."""
    text = record.stdout.decode("utf-8", "replace")
    try:
        outcome = workload.parse(text)
    except WorkloadFailed as error:
        record.reason = str(error)
        if record.exit_status:
            last = record.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            record.reason = f"Exit status {record.exit_status}{': ' + last[0] if last else ''}. " \
                            f"{error}"
        return ()
    except Exception as error:  # a parser's own fault must not lose the raw output
        record.reason = f"The output could not be read: {type(error).__name__}: {error}"
        return ()
    if record.exit_status != 0:
        record.reason = f"Exit status {record.exit_status}, though its output reads well."
        return ()
    record.status, record.workload_ns, record.info = "ok", outcome.workload_ns, outcome.info
    record.flags = _flags(record, agreement)
    return outcome.measurements


def _flags(record: RunRecord, agreement: clock.Agreement | None) -> tuple[str, ...]:
    flags = []
    own_clock_off = (record.workload_ns is not None and record.host_ns is not None
                     and record.workload_ns > record.host_ns * (1 + clock.LIMIT))
    if (agreement and agreement.off) or own_clock_off:
        flags.append("clock")
    steal = record.observed.get("steal_share")
    if steal is not None and steal > STEAL_LIMIT:
        flags.append("steal")
    return tuple(flags)


def _alive(cluster: Any) -> bool:
    try:
        return bool(cluster.alive())
    except Exception:  # a cluster that cannot say is not alive
        return False


def _answers(cluster: Any) -> bool:
    try:
        return all(one.run(["true"], timeout=10).status == 0 for one in cluster.machines)
    except Exception:  # a machine that cannot answer has hung
        return False


def _down(cluster: Any) -> None:
    with suppress(Exception):
        cluster.down()
