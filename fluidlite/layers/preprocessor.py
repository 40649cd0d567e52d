"""Preprocessor: layers that transform the batches of a reader before the program reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fluidlite import unique_name
from fluidlite.base.errors import ProgramError
from fluidlite.executor import Executor
from fluidlite.layer_helper import check_variable, refuse
from fluidlite.layers.io import data
from fluidlite.loaders.record_file import Value
from fluidlite.loaders.record_reader import RecordReader, Records, tensor_of
from fluidlite.platform.device_registry import devices
from fluidlite.program.program import Program, program_guard
from fluidlite.program.scope import Scope
from fluidlite.program.variable import Variable


class Preprocessor:
    """A block of layers that transforms each batch of a reader, on the host, while batches are prefetched.

    Inside ``with preprocessor.block():`` append layers to ``preprocessor.inputs()`` and call
    ``preprocessor.outputs(...)``; ``preprocessor()`` then returns the reader of these.

    Parameters
    ----------
    reader : reader of ``layers.open_files``
    name : str, optional
        Not used.
    """

    def __init__(self, reader: RecordReader, name: str | None = None) -> None:
        if not isinstance(reader, RecordReader):
            refuse("reader", reader, "a reader, such as open_files makes")
        self._reader = reader
        self._program: Program | None = None
        self._inside = False
        self._inputs: list[Variable] = []
        self._outputs: list[Variable] = []

    @contextmanager
    def block(self) -> Iterator[None]:
        """Layers inside belong to the preprocessor."""
        if self._program is not None:
            raise ProgramError("Preprocessor: block() was entered before; it has one block")
        program, startup = Program(), Program()
        self._inside = True
        try:
            with program_guard(program, startup):
                yield
        finally:
            self._inside = False
        if startup.global_block().ops or any(variable.persistable for variable in program.list_vars()):
            raise ProgramError("Preprocessor: its layers have parameters or other state, which nothing would train")
        if not self._outputs:
            raise ProgramError("Preprocessor: the block named no outputs\n  Do: preprocessor.outputs(...) in it")
        self._program = program

    def inputs(self) -> list[Variable]:
        """The variables of the reader, inside the block."""
        if not self._inside:
            raise ProgramError("Preprocessor: inputs() belongs into the block\n  Do: with preprocessor.block(): ...")
        if not self._inputs:
            name = unique_name.generate("preprocessor")
            self._inputs = [
                data(f"{name}_{i}", spec.dims, append_batch_size=False, dtype=spec.dtype, lod_level=spec.lod_level)
                for i, spec in enumerate(self._reader.specs)
            ]
        return list(self._inputs)

    def outputs(self, *outs: Variable) -> None:
        """Set the variables that replace the reader's inputs."""
        if not self._inside:
            raise ProgramError("Preprocessor: outputs() belongs into the block\n  Do: with preprocessor.block(): ...")
        self._outputs = [check_variable("outs", out) for out in outs]

    def __call__(self) -> RecordReader:
        """The reader of the block's outputs."""
        program = self._program
        if program is None:
            raise ProgramError("Preprocessor: it has no block yet\n  Do: with preprocessor.block(): ...")
        specs = [out.spec for out in self._outputs]
        output_specs = [spec for spec in specs if spec is not None]
        names = [variable.name for variable in self._inputs]
        fetch_names = [out.name for out in self._outputs]

        def transform(records: Records) -> Records:
            def transformed() -> Iterator[list[Value]]:
                executor, scope = Executor(devices.host()), Scope()
                for record in records():
                    feed: dict[str, Any] = dict(zip(names, map(tensor_of, record), strict=False))
                    fetched = executor.run(program, feed=feed, fetch_list=fetch_names, scope=scope, return_numpy=False)
                    yield [(np.array(tensor), tuple(tuple(level) for level in tensor.lod())) for tensor in fetched]

            return transformed

        new_reader = self._reader.over(transform)
        new_reader.specs = output_specs
        return new_reader
