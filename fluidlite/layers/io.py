"""Layers of input: data, readers, and load."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from typing import Any

from fluidlite import unique_name
from fluidlite.layer_helper import check_bool, check_int, refuse
from fluidlite.layers.public import public
from fluidlite.loaders.fluid_loader import GeneratorLoader
from fluidlite.loaders.record_reader import RecordReader, StartedLoader
from fluidlite.platform.place import PlaceLike
from fluidlite.program.program import default_main_program
from fluidlite.program.variable import Variable
from fluidlite.tensor.var_type import VarType, dtype_of


def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: Any = "float32",
    lod_level: int = 0,
    type: str | None = None,
    stop_gradient: bool = True,
) -> Variable:
    """Declare a variable that is fed.

    name: The key under which it is fed
    shape: Dims; -1 or None for dims that are known only at a run
    append_batch_size: Put a batch dim of -1 first, unless ``shape`` has an unknown dim itself
    lod_level: Number of LoD levels: 1 for sequences
    type: Kind of variable; only ``VarType.LOD_TENSOR`` can be fed
    stop_gradient: False: gradients of the data can be computed
    """
    if not isinstance(name, str) or not name:
        refuse("name", name, "a text")
    if isinstance(shape, (str, Variable)) or not hasattr(shape, "__iter__"):
        refuse("shape", shape, "a list of ints")
    if type not in (None, VarType.LOD_TENSOR):
        refuse("type", type, f"{VarType.LOD_TENSOR!r}")
    dims = [-1 if d is None else check_int("shape", d, minimum=-1) for d in shape]
    if check_bool("append_batch_size", append_batch_size) and -1 not in dims:
        dims = [-1, *dims]
    block = default_main_program().global_block()
    existing = block.vars.get(name)
    if existing is not None and not existing.is_data:
        refuse("name", name, "a name that is not taken", "it is the result of an earlier layer, or a parameter")
    return block.create_var(
        name,
        shape=dims,
        dtype=dtype_of(dtype),
        lod_level=check_int("lod_level", lod_level, minimum=0),
        stop_gradient=stop_gradient,
        is_data=True,
    )


@public
def _fluid_data(name: str, shape: Sequence[int | None], dtype: Any = "float32", lod_level: int = 0) -> Variable:
    """Declare a variable that is fed, ``fluid.data``: its dims are those of ``shape``, no batch dim is added.

    name: The key under which it is fed
    shape: Dims; -1 or None for dims that are known only at a run
    lod_level: Number of LoD levels: 1 for sequences
    """
    return data(name, shape, append_batch_size=False, dtype=dtype, lod_level=lod_level)


_fluid_data.__name__ = _fluid_data.__qualname__ = "data"  # its public name


def py_reader(
    capacity: int,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[Any],
    lod_levels: Sequence[int] | None = None,
    name: str | None = None,
    use_double_buffer: bool = True,
) -> GeneratorLoader:
    """Declare variables that a reader feeds at each run; :func:`read_file` returns them.

    ``reader.decorate_paddle_reader(fluid.batch(...))`` sets what it reads, ``reader.start()`` begins an epoch, runs
    raise ``fluid.core.EOFException`` at its end, ``reader.reset()`` ends it.

    capacity: Batches prefetched, at most 8
    shapes: Dims of each variable, the batch's (-1) included
    lod_levels: LoD levels of each variable; default: none
    use_double_buffer: False: one batch is prefetched
    """
    if isinstance(shapes, (str, Variable)) or not hasattr(shapes, "__len__") or not len(shapes):
        refuse("shapes", shapes, "a list of shapes, one a variable")
    for argument, value in (("dtypes", dtypes), ("lod_levels", lod_levels)):
        if value is not None and (isinstance(value, str) or len(value) != len(shapes)):
            refuse(argument, value, f"a list of {len(shapes)}, one a shape")
    name = name or unique_name.generate("py_reader")
    levels = lod_levels or [0] * len(shapes)
    variables = [
        data(f"{name}_{i}", shape, append_batch_size=False, dtype=dtype, lod_level=level)
        for i, (shape, dtype, level) in enumerate(zip(shapes, dtypes, levels, strict=True))
    ]
    return GeneratorLoader(variables, capacity, use_double_buffer, iterable=False, name=name)


def create_py_reader_by_data(
    capacity: int, feed_list: Sequence[Variable], name: str | None = None, use_double_buffer: bool = True
) -> GeneratorLoader:
    """Let a reader feed variables of ``layers.data`` at each run; see :func:`py_reader`.

    capacity: Batches prefetched, at most 8
    use_double_buffer: False: one batch is prefetched
    """
    return GeneratorLoader(feed_list, capacity, use_double_buffer, iterable=False, name=name)


def _refuse_reader(reader: Any) -> None:
    if not isinstance(reader, (GeneratorLoader, RecordReader)):
        refuse("reader", reader, "a reader, such as py_reader or open_files makes")


def read_file(reader: GeneratorLoader | RecordReader) -> Variable | list[Variable]:
    """Return the variables that a reader feeds: one, or a list of them.

    Returns: Variable, or list of Variable
    """
    _refuse_reader(reader)
    if isinstance(reader, RecordReader):
        if reader.loader is None:
            name = unique_name.generate("reader")
            variables = [
                data(f"{name}_{i}", spec.dims, append_batch_size=False, dtype=spec.dtype, lod_level=spec.lod_level)
                for i, spec in enumerate(reader.specs)
            ]
            reader.loader = StartedLoader(variables, reader, 2, name)
            if reader.place is not None:
                reader.loader.set_places(reader.place)
        reader = reader.loader
    return reader.variables[0] if len(reader.variables) == 1 else list(reader.variables)


def double_buffer(
    reader: GeneratorLoader | RecordReader, place: PlaceLike | None = None, name: str | None = None
) -> GeneratorLoader | RecordReader:
    """Return the reader; its batches are always copied to the place before a run reads them.

    place: The place of batches; default: that of the run
    name: Not used
    """
    _refuse_reader(reader)
    if place is not None:
        reader.set_places(place)
    return reader


def load(out: Variable, file_path: str, load_as_fp16: bool | None = None) -> None:
    """Load a variable from a file, at each run: a tensor as saved by Paddle or by ``fluid.io.save_vars``.

    out: Declared with the dims and dtype of the tensor in the file
    load_as_fp16: The file holds float32, and ``out`` is float16
    """
    if not isinstance(out, Variable):
        refuse("out", out, "a Variable")
    if not isinstance(file_path, (str, PathLike)) or not str(file_path):
        refuse("file_path", file_path, "the path of a file")
    attrs = {"file_path": fspath(file_path), "load_as_fp16": bool(load_as_fp16)}
    default_main_program().current_block().append_op("load", {}, {"Out": out}, attrs)
