"""A Slurm cluster of two nodes on this machine, one of them with GPUs."""

import getpass
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from project_folder import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
NODES = ("n1", "n2")
CONFIGURATION = """\
ClusterName=buildsys
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
SlurmctldPort={controller_port}
StateSaveLocation={root}/controller
SlurmctldPidFile={root}/controller.pid
SlurmdSpoolDir={root}/spool-%n
SlurmdPidFile={root}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
ReturnToService=0
KillWait=1
SlurmdTimeout=10
MessageTimeout=2
DefMemPerCPU=100
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=60 PriorityTier=1
PartitionName=urgent Nodes=n1,n2 PriorityTier=9
"""


class Cluster:
    """Daemons of Slurm with their files in one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in (*NODES, "controller")]
        controller_port, *ports = [one.getsockname()[1] for one in sockets]
        for one in sockets:
            one.close()
        host = socket.gethostname().partition(".")[0]
        nodes = "\n".join(
            f"NodeName={name} NodeAddr=127.0.0.1 NodeHostname={host} Port={port} CPUs=2"
            f" RealMemory=1000{gres}"
            for name, port, gres in zip(NODES, ports, ("", " Gres=gpu:h100:2"), strict=True)
        )
        (root / "controller").mkdir()
        (root / "slurm.conf").write_text(
            CONFIGURATION.format(
                root=root,
                host=host,
                user=getpass.getuser(),
                controller_port=controller_port,
                nodes=nodes,
            )
        )
        for name in ("gpu0", "gpu1"):
            (root / name).touch()
        (root / "gres.conf").write_text(f"NodeName=n2 Name=gpu Type=h100 File={root}/gpu[0-1]\n")
        (root / "key").write_bytes(secrets.token_bytes(128))
        (root / "key").chmod(0o400)

    def start(self, *names: str) -> None:
        """Start daemons: munged, slurmctld or names of nodes."""
        for name in names:
            own = [f"--{n}={self.root}/munge.{n}" for n in ("socket", "pid-file", "log-file")]
            command = {
                "munged": ["munged", "-F", "--force", f"--key-file={self.root}/key", *own,
                           f"--seed-file={self.root}/seed"],
                "slurmctld": ["slurmctld", "-D"],
            }.get(name, ["slurmd", "-D", "-N", name])  # fmt: skip
            log = (self.root / f"{name}.log").open("ab")
            self._running[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            log.close()
            if name == "munged":
                wait_until((self.root / "munge.socket").exists, "munged answers")

    def stop(self, *names: str) -> None:
        """End daemons. Jobs go on."""
        for name in names:
            process = self._running.pop(name)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.root / "slurm.conf")}

    def call(self, *command: str) -> str:
        """Return what a command of Slurm prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_ready(self) -> bool:
        """Return True if jobs can start on all nodes."""
        done = subprocess.run(
            ["sinfo", "-h", "-p", "main", "-o", "%D %t"],
            env=self.environment, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout.split() == [str(len(NODES)), "idle"]

    def is_up(self) -> bool:
        """Return True if the controller answers."""
        command = ["squeue", "-h"]
        return not subprocess.run(command, env=self.environment, capture_output=True).returncode

    def close(self) -> None:
        """End all daemons."""
        names = ("n1", "n2", "slurmctld", "munged")
        self.stop(*(name for name in names if name in self._running))


def missing_programs() -> str:
    """Return the names of programs that a cluster needs, and this machine lacks."""
    return ", ".join(name for name in PROGRAMS if not shutil.which(name))


@contextmanager
def running_cluster(root: Path) -> Iterator[Cluster]:
    """Yield a cluster that runs jobs."""
    cluster = Cluster(root)
    try:
        cluster.start("munged", "slurmctld")
        wait_until(cluster.is_up, "slurmctld answers")  # else nodes wait for ten seconds
        cluster.start(*NODES)
        wait_until(cluster.is_ready, "both nodes are idle")
        yield cluster
    finally:
        cluster.close()
