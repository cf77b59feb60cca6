"""The machines of a simulated cluster: a program that answers requests as run-action would.

Requests come on standard input as JSON lines: ``{"submit": handle, "pool", "arguments"}`` or
``{"cancel": handle}``. Events of jobs go to standard output. A job takes the recorded time of its
stage; time passes ``scale`` times as fast as outside. Jobs are killed, machines preempted and lost.
Its process is not part of doit's, so that CPU time and memory of doit are those of a real run.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import random
import select
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blake3 import blake3

from buildsys.execution.job_answer import SCHEMA, Answer, encode_answer
from buildsys.store.ledger import OutputFile
from buildsys.store.object_store import object_name

KILLED = 137
_LOST_FOR_S = 300.0  # a machine that was lost comes back
_PREEMPTED_FOR_S = 60.0
_KINDS = ("killed", "preempted", "lost after publishing")
_STORE_READS = 3  # of a job: its request, the record of its key, the answer; besides its files
_RESTORED_S = 0.5  # of a job that finds its outputs in the store


@dataclass(eq=False)
class Job:
    """A job of the cluster."""

    handle: str
    pool: str
    digest: str
    answer: str
    submitted: float
    is_cancelled: bool = False


@dataclass
class Pool:
    """Equal machines with one job each."""

    free: list[tuple[float, int]]  # since when, machine
    waiting: deque[Job] = field(default_factory=deque)
    running: dict[int, Job] = field(default_factory=dict)  # by machine
    useful_s: float = 0.0
    wasted_s: float = 0.0
    away_s: float = 0.0  # after a loss


class Cluster:
    """Pools of machines in virtual time."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.scale: float = spec["scale"]
        self.durations: list[dict[str, float]] = spec["durations"]
        self.killed_share: float = spec["killed_share"]
        self.loss_pause_s: float = spec["loss_pause_s"]
        self.latency_s: float = spec["latency_s"]
        self.store = Path(spec["store"])
        self.pools = {
            name: Pool([(0.0, number) for number in range(count)])
            for name, count in spec["pools"].items()
        }
        self.random = random.Random(spec["seed"])
        self.began: float | None = None
        self.events: list[tuple[float, int, str, Any]] = []  # time, order, kind, subject
        self.order = 0
        self.jobs: dict[str, Job] = {}
        self.built: Counter[str] = Counter()  # by key
        self.published: dict[str, tuple[dict[str, OutputFile], float]] = {}
        self.losses: Counter[str] = Counter()
        self.attempts = 0
        self.last_end = 0.0

    def now(self) -> float:
        if self.began is None:
            self.began = time.monotonic()
            if self.loss_pause_s:
                self._at(self.loss_pause_s, "lose", None)
        return (time.monotonic() - self.began) * self.scale

    def receive(self, request: dict[str, Any]) -> None:
        if "submit" in request:
            words = request["arguments"]
            answer = words[words.index("--answer") + 1]
            job = Job(request["submit"], request["pool"], words[1], answer, self.now())
            self.jobs[job.handle] = job
            if words[0] == "describe-machine":
                self._describe(job)
                return
            self.attempts += 1
            self.pools[job.pool].waiting.append(job)
            self._start(job.pool)
        elif (known := self.jobs.get(request["cancel"])) is not None:
            known.is_cancelled = True

    def advance(self) -> float:
        """Let everything happen that is due; return the seconds until the next event."""
        while self.events and self.events[0][0] <= self.now():
            at, _, kind, subject = heapq.heappop(self.events)
            getattr(self, f"_{kind}")(at, subject)
        return (self.events[0][0] - self.now()) / self.scale if self.events else 60.0

    def _at(self, at: float, kind: str, subject: Any) -> None:
        self.order += 1
        heapq.heappush(self.events, (at, self.order, kind, subject))

    def _start(self, name: str) -> None:
        pool = self.pools[name]
        while pool.free and pool.waiting:
            job = pool.waiting.popleft()
            if job.is_cancelled:
                continue
            since, machine = heapq.heappop(pool.free)
            at = max(since, job.submitted)  # as without the delays of this program
            pool.running[machine] = job
            send({"job": job.handle, "event": "running", "machine": f"{name}{machine}"})
            request = self._object(job.digest)
            files = len(request["inputs"]) + len(request["files"])
            stores_s = (_STORE_READS + files) * self.latency_s
            if request["key"] in self.published:
                self._at(at + stores_s + _RESTORED_S, "end", (job, machine, at, request, True))
                continue
            action = request["action"]
            seconds = self._seconds(action) + (stores_s + len(action["outputs"]) * self.latency_s)
            if self.random.random() < self.killed_share:
                kind = self.random.choice(_KINDS)
                part = 1.0 if kind == _KINDS[2] else self.random.random()
                subject = (job, machine, at, request, kind)
                self._at(at + part * seconds, "kill", subject)
            else:
                self._at(at + seconds, "end", (job, machine, at, request, False))

    def _seconds(self, action: dict[str, Any]) -> float:
        family = self.durations[int(action["model"].lstrip("m")) % len(self.durations)]
        return family[":".join(filter(None, (action["stage"], action["variant"])))]

    def _end(self, at: float, subject: tuple[Job, int, float, dict[str, Any], bool]) -> None:
        job, machine, began, request, restored = subject
        pool = self.pools[job.pool]
        if pool.running.get(machine) is not job:  # lost meanwhile
            return
        pool.useful_s += at - began
        if not restored:
            self._publish(request)
        self._answer(job, request)
        self._release(job, machine, at)
        send({"job": job.handle, "event": "ended", "code": 0})

    def _kill(self, at: float, subject: tuple[Job, int, float, dict[str, Any], str]) -> None:
        job, machine, began, request, kind = subject
        pool = self.pools[job.pool]
        if pool.running.get(machine) is not job:
            return
        pool.wasted_s += at - began
        self.losses[kind] += 1
        if kind == _KINDS[2]:
            self._publish(request)
        away_s = _PREEMPTED_FOR_S if kind == "preempted" else 0.0
        self._release(job, machine, at, away_s)
        if kind == "killed":
            send({"job": job.handle, "event": "ended", "code": KILLED})
        else:
            send({"job": job.handle, "event": "lost", "reason": f"{job.pool}{machine} was {kind}"})

    def _lose(self, at: float, _: None) -> None:
        """Lose a machine with its job, for a while."""
        running = [(name, m) for name, pool in self.pools.items() for m in pool.running]
        if running:
            name, machine = self.random.choice(running)
            job = self.pools[name].running[machine]
            self.losses["machine lost"] += 1
            self._release(job, machine, at, _LOST_FOR_S)
            send({"job": job.handle, "event": "lost", "reason": f"{name}{machine} was lost"})
        self._at(at + self.loss_pause_s, "lose", None)

    def _release(self, job: Job, machine: int, ended: float, away_s: float = 0.0) -> None:
        pool = self.pools[job.pool]
        pool.away_s += away_s
        del pool.running[machine]
        del self.jobs[job.handle]
        self.last_end = max(self.last_end, ended)
        self._at(ended + away_s, "free", (job.pool, machine))

    def _free(self, at: float, subject: tuple[str, int]) -> None:
        name, machine = subject
        heapq.heappush(self.pools[name].free, (at, machine))
        self._start(name)

    def _publish(self, request: dict[str, Any]) -> None:
        """Write the outputs of a target into the store."""
        action, key = request["action"], request["key"]
        self.built[key] += 1
        files = {}
        for ref in action["outputs"].values():
            if ref["optional"]:
                continue
            content = output_content(key, ref["path"], is_listing=bool(ref["folder"]))
            file = OutputFile(blake3(content).hexdigest(), len(content))
            self._write(object_name(file.digest), content)
            files[ref["path"]] = file
        self.published[key] = files, self._seconds(action)

    def _answer(self, job: Job, request: dict[str, Any]) -> None:
        files, seconds = self.published[request["key"]]
        machine = {"name": job.pool, "id": job.pool, "gpus": ""}
        answer = Answer(
            SCHEMA, job.answer, job.digest, "passed", 0,
            seconds=seconds, files=files, machine=machine,
        )  # fmt: skip
        self._write(f"answers/{job.answer}.json", encode_answer(answer, None))

    def _describe(self, job: Job) -> None:
        facts = {"device:cpu": "simulated", "tool:simulated": "1"}
        answer = Answer(
            SCHEMA, job.answer, job.digest, "passed", 0,
            environments=dict.fromkeys(self._object(job.digest), facts),
        )  # fmt: skip
        self._write(f"answers/{job.answer}.json", encode_answer(answer, None))
        del self.jobs[job.handle]
        send({"job": job.handle, "event": "ended", "code": 0})

    def _object(self, digest: str) -> Any:
        return json.loads((self.store / object_name(digest)).read_bytes())

    def _write(self, name: str, content: bytes) -> None:
        path = self.store / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(content)
        part.replace(path)

    def figures(self) -> dict[str, Any]:
        """Return what has happened."""
        return {
            "makespan_s": self.last_end,
            "attempts": self.attempts,
            "built": len(self.built),
            "built_twice": sum(count > 1 for count in self.built.values()),
            "losses": dict(self.losses),
            "useful_s": {name: pool.useful_s for name, pool in self.pools.items()},
            "wasted_s": {name: pool.wasted_s for name, pool in self.pools.items()},
            "away_s": {name: pool.away_s for name, pool in self.pools.items()},
        }


def output_content(key: str, path: str, *, is_listing: bool) -> bytes:
    """Return the content of an output: a function of the action key alone."""
    if is_listing:
        return b"[]"
    made_of = hashlib.sha256(f"{key} {path}".encode()).hexdigest()
    return json.dumps({"status": "passed", "made_of": made_of}).encode()


def send(event: dict[str, Any]) -> None:
    """Write an event."""
    sys.stdout.write(json.dumps(event) + "\n")


def main() -> None:
    """Serve until standard input closes."""
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    cluster = Cluster(spec)
    os.set_blocking(0, False)
    text = b""
    while True:
        pause_s = cluster.advance() if cluster.began is not None else 60.0
        sys.stdout.flush()
        if not select.select([0], [], [], max(0.0, pause_s))[0]:
            continue
        piece = os.read(0, 1 << 20)
        if not piece:
            break
        *lines, text = (text + piece).split(b"\n")
        for line in lines:
            cluster.receive(json.loads(line))
    Path(spec["figures"]).write_text(json.dumps(cluster.figures()), encoding="utf-8")


if __name__ == "__main__":
    main()
