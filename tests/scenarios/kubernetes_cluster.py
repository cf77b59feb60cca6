"""A Kubernetes API server with its controller of Jobs on this machine, without nodes.

The test plays the part of nodes: it changes the status of Pods. The programs are looked for in
``KUBEBUILDER_ASSETS``, as `setup-envtest` has it, and in PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_jobs import wait_for

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
ADMIN, GUEST = "admin-token", "guest-token"


class Cluster:
    """Processes of a cluster with their files in one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        self._etcd, self._peer, self._port = (one.getsockname()[1] for one in sockets)
        for one in sockets:
            one.close()
        (root / "tokens.csv").write_text(
            f'{ADMIN},admin,admin,"system:masters"\n{GUEST},guest,guest\n'
        )
        key = str(root / "account.key")
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        for user, token in (("admin", ADMIN), ("guest", GUEST)):
            cluster = {
                "server": f"https://127.0.0.1:{self._port}",
                "insecure-skip-tls-verify": True,
            }
            configuration = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": token}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": user}}],
                "current-context": "c",
            }
            (root / f"{user}.kubeconfig").write_text(json.dumps(configuration))

    def start(self, *names: str) -> None:
        """Start programs."""
        url = f"http://127.0.0.1:{self._etcd}"
        key = f"{self.root}/account.key"
        arguments = {
            "etcd": [
                f"--data-dir={self.root}/etcd", f"--listen-client-urls={url}", "--name=one",
                f"--advertise-client-urls={url}", "--unsafe-no-fsync",
                f"--listen-peer-urls=http://127.0.0.1:{self._peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{self._peer}",
                f"--initial-cluster=one=http://127.0.0.1:{self._peer}",
            ],
            "kube-apiserver": [
                f"--etcd-servers={url}", f"--cert-dir={self.root}/certificates",
                "--bind-address=127.0.0.1", f"--secure-port={self._port}",
                "--authorization-mode=RBAC", f"--token-auth-file={self.root}/tokens.csv",
                "--service-account-issuer=https://buildsys.test",
                f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
                "--disable-admission-plugins=ServiceAccount",
                "--service-cluster-ip-range=10.0.0.0/24",
            ],
            "kube-controller-manager": [
                f"--kubeconfig={self.root}/admin.kubeconfig", "--leader-elect=false",
                "--controllers=job,garbagecollector,namespace,resourcequota",
                f"--cert-dir={self.root}/certificates", "--secure-port=0",
            ],
        }  # fmt: skip
        for name in names:
            with (self.root / f"{name}.log").open("ab") as log:
                self._running[name] = subprocess.Popen(
                    [program(name), *arguments[name]],
                    cwd=self.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip

    def stop(self, *names: str) -> None:
        """Kill programs."""
        for name in names:
            process = self._running.pop(name)
            process.kill()
            process.wait()

    def call(self, *arguments: str, text: str = "", user: str = "admin") -> str:
        """Return what kubectl prints."""
        own = [program("kubectl"), f"--kubeconfig={self.root}/{user}.kubeconfig"]
        done = subprocess.run([*own, *arguments], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_up(self) -> bool:
        """Return True if the API server answers."""
        own = [program("kubectl"), f"--kubeconfig={self.root}/admin.kubeconfig"]
        command = [*own, "--request-timeout=2s", "get", "--raw", "/readyz"]
        return not subprocess.run(command, capture_output=True).returncode

    def pods(self, job: str) -> list[dict[str, Any]]:
        """Return the Pods of a Job that nobody deletes, oldest first."""
        found = json.loads(self.call("get", "pods", f"--selector=job-name={job}", "-ojson"))
        alive = [one for one in found["items"] if "deletionTimestamp" not in one["metadata"]]
        return sorted(alive, key=lambda one: str(one["metadata"]["creationTimestamp"]))

    def bind(self, pod: str, node: str) -> None:
        """Assign a Pod to a node, as the scheduler does."""
        binding = {
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }  # fmt: skip
        path = f"/api/v1/namespaces/default/pods/{pod}/binding"
        self.call("create", "--raw", path, "--filename=-", text=json.dumps(binding))

    def set_status(self, pod: str, **status: Any) -> None:
        """Change the status of a Pod, as its node does."""
        patch = json.dumps({"status": status})
        self.call("patch", "pod", pod, "--subresource=status", "--type=merge", f"--patch={patch}")

    def close(self) -> None:
        """End all programs."""
        self.stop(*reversed(self._running))


def program(name: str) -> str:
    """Return the path of a program, "" if it is missing."""
    folders = [os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ.get("PATH", "")]
    return shutil.which(name, path=os.pathsep.join(filter(None, folders))) or ""


def missing_programs() -> str:
    """Return the names of programs that a cluster needs, and this machine lacks."""
    return ", ".join(name for name in (*PROGRAMS, "openssl") if not program(name))


@contextmanager
def running_cluster(root: Path) -> Iterator[Cluster]:
    """Yield a cluster that takes Jobs."""
    cluster = Cluster(root)
    try:
        cluster.start("etcd", "kube-apiserver")
        wait_for(cluster.is_up)
        cluster.start("kube-controller-manager")
        yield cluster
    finally:
        cluster.close()
