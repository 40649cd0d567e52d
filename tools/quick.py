"""The quick check of a change: ``make lint``, a core of unit tests, and the tests of what the change touches.

``python tools/quick.py [--base BRANCH]`` compares with git's merge base of HEAD and the base (default: origin/main,
else main), uncommitted and new files included. Static checks run one after the other, beside the tests.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = (
    "test_program.py", "test_scope.py", "test_place.py", "test_place_names.py", "test_tensor.py", "test_lod.py",
    "test_planner.py", "test_backward.py", "test_op.py", "test_distribution.py", "test_quick.py",
)  # fmt: skip
"""Unit tests of a few seconds, that run with every change."""
BUDGET = 30
"""Seconds after which no further file of touched tests is begun; those that are left are named."""


def git(*arguments: str) -> list[str]:
    """Run git in the repository; return its lines, none where it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed_files(base: str | None = None) -> list[str]:
    """The files that differ from the merge base with ``base``, and those that git does not know yet.

    Raises SystemExit: there is no such base.
    """
    for name in [base] if base else ["origin/main", "main", "origin/master", "master"]:
        if merge := git("merge-base", "HEAD", name):
            return sorted({*git("diff", "--name-only", merge[0]), *git("ls-files", "--others", "--exclude-standard")})
    raise SystemExit(f"git knows no merge base of HEAD and {base or 'main'}\n  Do: name a branch, --base BRANCH")


def module_of(file: str) -> str | None:
    """``fluidlite.a.b`` of ``fluidlite/a/b.py``; None of files that are no module."""
    if not file.startswith("fluidlite/") or not file.endswith(".py"):
        return None
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def tests_of(files: Iterable[str], tests: dict[str, str]) -> list[str]:
    """The test files that changed, then those that import a changed module, fewest imports first.

    ``files``: changed files.
    ``tests``: text of each test file by its path.
    """
    files = list(files)
    own = [file for file in files if file in tests]
    modules = [module for file in files if (module := module_of(file)) and module != "fluidlite"]
    found = []
    for path, text in tests.items():
        if path not in own and any(_imports(text, module) for module in modules):
            found.append(path)
    return own + sorted(found, key=lambda path: (tests[path].count("\nfrom fluidlite"), path))


def _imports(text: str, module: str) -> bool:
    package, _, name = module.rpartition(".")
    whole = rf"^(from|import) {re.escape(module)}\b(?!\.)"
    part = rf"^from {re.escape(package)} import [^\n]*\b{name}\b"
    return re.search(f"{whole}|{part}", text, re.M) is not None


def operators_of(files: Iterable[str]) -> list[str]:
    """The operators that changed files of ``fluidlite/operators`` define."""
    paths = {str(ROOT / file) for file in files if file.startswith("fluidlite/operators/") and file.endswith(".py")}
    if not paths:
        return []
    import fluidlite  # noqa: F401  (which registers the operators)
    from fluidlite.program.registry import ops

    return sorted({op.type.removesuffix("_grad") for op in ops if op.origin.rpartition(":")[0] in paths})


def pytest(*arguments: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", *arguments]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", help="compare with the merge base of this branch")
    base, started = parser.parse_args(arguments).base, time.monotonic()
    files = changed_files(base)
    tests = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in sorted(ROOT.glob("tests/**/test_*.py"))}
    touched = tests_of(files, tests)
    static = subprocess.Popen(
        ["make", "--no-print-directory", "--silent", "lint"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    good = pytest(*(f"tests/unit/{name}" for name in CORE))
    if operators := operators_of(files):
        chosen = [part for name in operators for part in ("--op", name)]
        good &= pytest("tests/operators/test_samples.py", "--place", "cpu", *chosen)
    waiting = [path for path in touched if Path(path).name not in CORE]
    waiting.sort(key=lambda path: "/unit/" not in path)
    while good and waiting and time.monotonic() - started < BUDGET:
        good &= pytest(waiting.pop(0))
    output, _ = static.communicate()
    print(output, end="")
    if waiting:
        print(f"Left to `make test`, though the change touches them: {' '.join(waiting)}")
    print(f"{len(files)} files changed; {time.monotonic() - started:.0f} s")
    return 0 if good and static.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
