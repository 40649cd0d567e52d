"""What is saved to a disk that is full: an error that names the file, and what was there before stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import FluidError
from fluidlite.loaders.record_file import RecordIOWriter

resource = pytest.importorskip("resource", reason="this system has no limits of files")


@contextmanager
def full(bytes: int) -> Iterator[None]:
    """No file can get longer than that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def feeder() -> Any:
    return fluid.DataFeeder(["x"], fluid.CPUPlace())


def rows(count: int) -> Callable[[], Any]:
    return lambda: iter([[(np.full(300, i, "float32"),)] for i in range(count)])


Save = Callable[[Any, Path], Any]
SAVES: dict[str, Save] = {
    "save": lambda exe, to: fluid.save(fluid.default_main_program(), f"{to}/model"),
    "paddle save": lambda exe, to: fluid.save(fluid.default_main_program(), f"{to}/model", format="paddle"),
    "persistables": lambda exe, to: fluid.io.save_persistables(exe, to),
    "one file": lambda exe, to: fluid.io.save_persistables(exe, to, filename="values"),
    "paddle persistables": lambda exe, to: fluid.io.save_persistables(exe, to, format="paddle"),
    "inference": lambda exe, to: fluid.io.save_inference_model(to, ["x"], [out()], exe),
    "records": lambda exe, to: fluid.recordio_writer.convert_reader_to_recordio_file(f"{to}/rows", rows(300), feeder()),
}


def out() -> Any:
    block = fluid.default_main_program().global_block()
    return block.var(block.ops[-1].output("Out")[0])


def held(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("way", SAVES)
def test_what_was_there_stays(way: str, tmp_path: Path) -> None:
    exe = fluid.Executor("cpu")
    layers.fc(layers.data("x", [300]), 200)
    exe.run(fluid.default_startup_program())
    SAVES[way](exe, tmp_path)
    before = held(tmp_path)
    for size in (0, 10, 500):
        with full(size), pytest.raises(FluidError, match=r"(?s)cannot be written: .*Do: ") as error:
            SAVES[way](exe, tmp_path)
        assert str(tmp_path) in str(error.value)
        assert held(tmp_path) == before
    SAVES[way](exe, tmp_path)
    assert held(tmp_path).keys() == before.keys()


def test_a_file_of_records_that_could_not_be_written_is_closed(tmp_path: Path) -> None:
    """Half a record is no end of a file: it is not given the name, by whoever closes it."""
    writer = RecordIOWriter(tmp_path / "rows")
    with full(10_000), pytest.raises(FluidError, match=r"(?s)rows cannot be written: .*Do: "):
        for _ in range(100):
            writer.append_tensor(np.random.RandomState(1).rand(1000))
            writer.complete_append_tensor()
    writer.close()
    assert not list(tmp_path.iterdir())
