"""Scripts in forks are as scripts in processes that began with them."""

from __future__ import annotations

import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from forks import Forks

SCRIPT = """
import atexit, os, sys
import fluidlite as fluid
atexit.register(lambda: print("ended"))
print(__name__, sys.argv[1:], os.getcwd(), os.environ["ASKED"], os.path.basename(sys.path[0]))
print(sorted(name for name in sys.modules if name in ("pyopencl", "neighbour")), [v for v in fluid.default_main_program().list_vars()])
print(sys.stdin.read() == "", file=sys.stderr)
fluid.layers.data("x", [3])
import neighbour
sys.exit(neighbour.code)
"""  # noqa: E501


def test_each_has_arguments_files_a_folder_and_modules_of_its_own(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "neighbour.py").write_text("code = 3\n")
    for asked in ("one", "other"):
        monkeypatch.setenv("ASKED", asked)
        done = forks(tmp_path / "script.py", "a", tmp_path, cwd=tmp_path)
        assert done.returncode == 3
        first = f"__main__ ['a', '{tmp_path}'] {tmp_path} {asked} {tmp_path.name}"
        assert done.stdout.splitlines() == [first, "[] []", "ended"]
        assert done.stderr == "True\n"


def test_errors_and_signals_are_told(forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("print('before')\nraise ValueError('no')\n")
    (tmp_path / "crashes.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    done = forks(tmp_path / "raises.py")
    assert (done.returncode, done.stdout) == (1, "before\n")
    assert done.stderr.endswith("ValueError: no\n")
    assert forks(tmp_path / "crashes.py").returncode == (-11 if hasattr(os, "fork") else 11)


def alive(pid: int) -> bool:
    """Whether a process is there, and no zombie that its new parent did not collect yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_who_takes_too_long_is_ended_and_so_are_its_processes(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, written = tmp_path / "hangs.py", tmp_path / "child"
    script.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        "open(sys.argv[1], 'w').write(str(child.pid))\ntime.sleep(100)\n"
    )

    def later(*given: Any, select: Any = select.select) -> Any:
        """Its time begins when its process is there."""
        while not written.exists() or not written.read_text():
            time.sleep(0.01)
        return select(*given)

    with monkeypatch.context() as patch, pytest.raises(subprocess.TimeoutExpired):
        patch.setattr("forks.select.select", later)
        forks(script, written, timeout=0.1)
    end = time.monotonic() + 60
    while alive(int(written.read_text())):
        assert time.monotonic() < end, "its process goes on"
        time.sleep(0.01)
    script.write_text("print('next')")
    assert forks(script).stdout == "next\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each is a process of its own")
def test_who_ends_as_its_time_is_up_takes_no_answer_of_the_next(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "short.py"
    script.write_text("import sys\nsys.exit(3)\n")
    with monkeypatch.context() as patch:
        patch.setattr("forks.select.select", lambda *given: (time.sleep(1), ([], [], []))[1])
        with pytest.raises(subprocess.TimeoutExpired):
            forks(script)
    assert forks(script).returncode == 3
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "more"))
    script.write_text("import sys\nprint(sys.path[1])\n")
    assert forks(script).stdout.strip() == str(tmp_path / "more")
