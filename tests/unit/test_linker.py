"""What PoCL's kernels are linked with while tests run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

LINKER = Path(__file__).parents[1] / "linker"
LIBRARIES = ["-lm", "-lgcc", "--as-needed", "-lgcc_s", "--no-as-needed", "-lc"]


@pytest.mark.skipif(os.name == "nt", reason="PoCL's linker there is another one")
@pytest.mark.parametrize(
    ("output", "left"),
    [("/a folder/tempfile_x.so", ["-lgcc", "--as-needed", "--no-as-needed"]), ("/a folder/a.out", LIBRARIES)],
)
def test_kernels_are_linked_without_what_no_kernel_takes(output: str, left: list[str], tmp_path: Path) -> None:
    (tmp_path / "ld").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "ld").chmod(0o755)
    given = ["-shared", "-o", output, "a b.o"]
    found = subprocess.run(
        [LINKER / "ld", *given, *LIBRARIES],
        env={"PATH": os.pathsep.join((str(tmp_path), os.environ["PATH"]))},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.splitlines() == [*given, *left]


def test_compilers_look_for_it_first() -> None:
    assert os.environ["COMPILER_PATH"].split(os.pathsep)[0] == str(LINKER)
