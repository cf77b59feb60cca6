"""The channels of a job, with this process as the server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from buildsys.workers.client import server_handle
from buildsys.workers.client.server_handle import JobChannels
from buildsys.workers.protocol import Message, encode


@pytest.mark.skipif(sys.platform != "linux", reason="pidfds are of Linux")
def test_a_hanging_server_that_holds_the_events_does_not_hide_the_childs_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_handle, "_LIMIT_SLACK_S", 0.01)
    client, server = socket.socketpair()
    with client, server, subprocess.Popen(["sleep", "600"]) as child:
        channels = JobChannels(client, b"request")
        _, (events, status), *_ = socket.recv_fds(server, 100, 2)
        os.write(events, encode({"event": "started", "pid": child.pid}))

        def kill(event: Message) -> None:
            assert event == {"event": "started", "pid": child.pid}
            child.kill()

        assert channels.listen(60, None, kill) is None
        channels.close()
        os.close(events)
        os.close(status)
