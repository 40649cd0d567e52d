"""Scripts in processes of their own that need not import the framework: forks of one that has (``fork_server.py``)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

SERVER = Path(__file__).with_name("fork_server.py")


class Forks:
    """Runs scripts, one after the other; without ``os.fork`` each is a new process."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None

    def __call__(
        self, *arguments: str | Path, cwd: str | Path = ".", timeout: float = 280
    ) -> subprocess.CompletedProcess[str]:
        """Run a script with arguments, as ``subprocess.run`` runs ``python script arguments``.

        Raises
        ------
        subprocess.TimeoutExpired
            It was ended: it took longer.
        """
        argv = [os.path.abspath(arguments[0]), *map(str, arguments[1:])]
        if not hasattr(os, "fork"):
            command = [sys.executable, *argv]
            return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=cwd, check=False)
        with tempfile.TemporaryDirectory() as folder:
            printed = [Path(folder) / name for name in ("stdout", "stderr")]
            for file in printed:
                file.touch()
            request = {"argv": argv, "cwd": os.path.abspath(cwd), "env": dict(os.environ)}
            request |= {file.name: str(file) for file in printed}
            status = self._run(json.dumps(request), timeout, argv)
            out, err = (file.read_text(encoding="utf-8", errors="replace") for file in printed)
        return subprocess.CompletedProcess(argv, os.waitstatus_to_exitcode(status), out, err)

    def _run(self, request: str, timeout: float, argv: list[str]) -> int:
        server = self._server
        if server is None:
            command, pipe = [sys.executable, str(SERVER)], subprocess.PIPE
            paths = filter(None, (str(SERVER.parents[1]), os.environ.get("PYTHONPATH")))
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
            server = self._server = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, env=environment)
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(request.encode() + b"\n")
        pid = int(server.stdout.readline())
        late = not select.select([server.stdout], [], [], timeout)[0]
        if late:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.killpg(pid, signal.SIGKILL)
        status = int(server.stdout.readline())
        if late:
            raise subprocess.TimeoutExpired(argv, timeout)
        return status

    def close(self) -> None:
        """End the process that forks."""
        if self._server is not None:
            self._server.communicate()
            self._server = None
