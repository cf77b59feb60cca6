"""The live display of a real run on a terminal, and the durations that it prints."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from contextlib import closing

from project_folder import TIMEOUT_S, ProjectFolder, Ran, wait_until
from ready_project import ReadyProject

from buildsys.history.database import History
from buildsys.report.formatting import duration

COLUMNS = 80
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class TerminalRun:
    """doit on a terminal of 80 columns."""

    def __init__(self, project: ReadyProject, *arguments: str) -> None:
        self._controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, COLUMNS, 0, 0))
        environment = {**project.environment, "TERM": "xterm-256color"}
        for name in ("CI", "NO_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "doit", *arguments],
            cwd=project.root,
            env=environment,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)
        self._pieces: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def text(self) -> str:
        return b"".join(self._pieces).decode(errors="replace")

    def lines(self) -> list[str]:
        """Return every line ever drawn, without control characters."""
        return [_CONTROL.sub("", line) for line in re.split(r"[\r\n]+", self.text)]

    def end(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        self._reader.join()
        os.close(self._controller)
        return code

    def _read(self) -> None:
        while True:
            try:
                self._pieces.append(os.read(self._controller, 65536))
            except OSError:  # the other end is closed
                return


def test_ctrl_c_leaves_a_usable_terminal_and_readable_lines(ready: ReadyProject) -> None:
    ready.hold()
    run = TerminalRun(ready, "-n", "2")
    try:
        wait_until(lambda: ready.is_held, "reference:a is at work")
        wait_until(lambda: "targets done" in run.text, "the progress is shown")
        wait_until(
            lambda: any(re.match("done +export:a", line) for line in run.lines()),
            "export:a is done",
        )
        wait_until(
            lambda: any(re.search(r"reference:a .* case min", line) for line in run.lines()),
            "the display shows what reference:a does",
        )
    finally:
        os.killpg(run.process.pid, signal.SIGINT)
        code = run.end()
    assert code == 130, run.text
    last = run.text[run.text.rindex("\x1b[?25l") :]
    assert "\x1b[?25h" in last, "the cursor is shown again"
    after = _CONTROL.sub("", last[last.index("\x1b[?25h") :])
    assert re.search(r"^ reference +not run +interrupted", after, re.MULTILINE)
    assert after.endswith("interrupted; finished targets are kept, the rest will run next time\r\n")
    assert "targets done" not in after, "the progress is removed"
    assert max(map(len, run.lines())) <= COLUMNS, "no line is wrapped"


def test_a_target_has_one_duration_everywhere(built_once: tuple[ProjectFolder, Ran]) -> None:
    project, ran = built_once
    report = json.loads((project.root / "build/lin/report/report.json").read_text())
    with closing(History.read_only(project.root / ".buildsys/history.db")) as history:
        recorded = {build.target: build.seconds for build in history.builds()}
    lines = [line for line in report["summary"] if line["stage"] != "report"]  # not timed yet
    assert {line["target"] for line in report["summary"]} == ran.passed
    for line in lines:
        target = line["target"]
        stage, _, *variant = target.split(":")
        shown = duration(line["seconds"])
        assert recorded[target] == line["seconds"]
        assert re.search(rf"^done +{target}  {re.escape(shown)}(  |$)", ran.out, re.MULTILINE)
        row = rf"^ {' '.join((stage, *variant))} +passed +{re.escape(shown)} "
        assert re.search(row, ran.out, re.MULTILINE)
