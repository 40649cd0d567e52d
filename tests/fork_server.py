"""Runs scripts in forks of a process that has imported the framework and used nothing: ``fork_server.py``.

A line of JSON on standard input says what to run; the number of the process is written at once, its wait status when it
has ended. The process is as one that began with ``python script arguments``, but for what is imported already.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
from typing import Any

import drawn  # imports the framework, which takes the time


def serve() -> dict[str, Any] | None:
    """Fork for each request till the input ends; return the request in the fork."""
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)
            answers.close()
            request: dict[str, Any] = json.loads(line)
            return request
        with contextlib.suppress(OSError):  # who is first; it may have ended
            os.setpgid(pid, pid)
        print(pid, file=answers, flush=True)
        print(os.waitpid(pid, 0)[1], file=answers, flush=True)
    return None


def become(request: dict[str, Any]) -> None:
    """Take a request's arguments, environment, folder and files for what is printed."""
    for number, name in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        file = os.open(name, os.O_RDWR)
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, encoding="utf-8", closefd=False) for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    drawn.the_same(os.path.basename(request["argv"][0]))
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = request["argv"]
    sys.path[:1] = [os.path.dirname(sys.argv[0]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


if __name__ == "__main__" and (found := serve()) is not None:
    become(found)
    runpy.run_path(sys.argv[0], run_name="__main__")
