"""A cluster of Ray: one Ray job per run, which starts a retried task for each of ours."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from buildsys.errors import StageError
from buildsys.remote.jobs import ENDED, QUEUED, RUNNING, JobState, RemoteJob, System

_JOBS = "JOBS_OF_RUN"  # variable with the tasks of the run
_THREADS = "OMP_NUM_THREADS"  # which Ray sets to the number of its CPUs
_PORT = 8265  # the dashboard serves the Jobs API
_PHASES = {"PENDING": QUEUED, "RUNNING": RUNNING}
_RETRIES = 3  # for a task whose node is lost


class Ray(System):
    """The Jobs API of Ray: this machine needs no Ray."""

    def submit(self, jobs: Sequence[RemoteJob]) -> None:
        """Submit one Ray job with all tasks. Raises: StageError: Ray refuses it."""
        tasks = []
        for job in jobs:
            options = {"num_cpus": self.spec.cpus, "resources": self.spec.resources}
            options |= {"num_gpus": job.needs.gpu_count, "memory": job.needs.memory}
            options |= {"max_retries": _RETRIES, "name": job.name}
            removed = [] if _THREADS in self.environment else [_THREADS]
            tasks.append([job.name, job.after, job.command, options, removed])
        variables = {**self.environment, _JOBS: json.dumps(tasks)}
        content = {
            "submission_id": self._id,
            "entrypoint": "python -m buildsys.remote.ray",
            "runtime_env": {"env_vars": variables},
        }
        self._call("POST", "/api/jobs/", content)
        self.handles = {job.name: self._id for job in jobs}

    def states(self, ended: set[str]) -> dict[str, JobState]:
        """Look up the Ray job, which stands for all of ours. Raises: StageError."""
        del ended
        answer = self._call("GET", f"/api/jobs/{self._id}")
        phase = _PHASES.get(answer["status"], ENDED)
        detail = f"Ray job {self._id}: {answer.get('message') or answer['status']}"
        return dict.fromkeys(self.handles, JobState(phase, detail))

    def cancel(self) -> None:
        """Stop the Ray job with its tasks. Raises: StageError."""
        self._call("POST", f"/api/jobs/{self._id}/stop")

    @property
    def _id(self) -> str:
        return f"buildsys-{self.run}"

    def _call(self, method: str, path: str, content: Any = None) -> Any:
        url = f"http://{self.spec.address}"
        if self.spec.address == "auto":
            url = os.environ.get("RAY_API_SERVER_ADDRESS", f"http://127.0.0.1:{_PORT}")
        data = None if content is None else json.dumps(content).encode()
        token = os.environ.get("RAY_AUTH_TOKEN", "")
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{url}{path}", data, headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            words = error.read().decode(errors="replace").strip().splitlines() or [str(error)]
            raise StageError(f"Ray at {url}: {words[-1]}") from error
        except (OSError, ValueError) as error:
            hint = f"`address` is HOST:PORT of the dashboard ({_PORT})"
            raise StageError(f"Ray at {url} does not answer: {error}", hint) from error


def run_job(words: list[str], removed: list[str], *after: Any) -> int:
    """Run a job, as a process that ends with this worker; return its exit code."""
    del after  # results of the jobs before it
    command = [sys.executable, "-m", "buildsys", words[0], "--parent", str(os.getpid())]
    environment = {name: v for name, v in os.environ.items() if name not in removed}
    return subprocess.run([*command, *words[1:]], check=False, env=environment).returncode


def main() -> None:
    """Start a task for each job, and wait for all; the log is the Ray job's."""
    import ray

    ray.init()
    task, results = ray.remote(run_job), dict[str, Any]()
    for name, after, words, options, removed in json.loads(os.environ[_JOBS]):
        before = [results[after]] if after else []
        results[name] = task.options(**options).remote(words, removed, *before)
    for name, result in results.items():
        try:
            print(f"{name}: exit code {ray.get(result)}", flush=True)  # noqa: T201
        except ray.exceptions.RayError as error:
            print(f"{name}: {error}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
