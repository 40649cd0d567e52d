"""Readers as layers: files of records, random numbers, shuffle and batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite import reader as readers
from fluidlite.batch import batch as batches
from fluidlite.layer_helper import check_int, refuse
from fluidlite.loaders.record_reader import RecordReader, Records, concatenated, random_records, records_of_files
from fluidlite.program.program import default_main_program
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec, dims_problem
from fluidlite.tensor.var_type import dtype_of


def _specs(shapes: Any, lod_levels: Any, dtypes: Any) -> list[Spec]:
    if isinstance(shapes, (str, Variable)) or not hasattr(shapes, "__len__") or not len(shapes):
        refuse("shapes", shapes, "a list of shapes, one a field of a record")
    for argument, value in (("lod_levels", lod_levels), ("dtypes", dtypes)):
        if isinstance(value, str) or not hasattr(value, "__len__") or len(value) != len(shapes):
            refuse(argument, value, f"a list of {len(shapes)}, one a shape")
    specs = []
    for shape, level, dtype in zip(shapes, lod_levels, dtypes, strict=True):
        if isinstance(shape, (str, Variable)) or not hasattr(shape, "__iter__"):
            refuse("shapes", shapes, "a list of shapes, one a field of a record")
        dims = [-1 if dim is None else check_int("shapes", dim, minimum=-1) for dim in shape]
        name = dtype_of(dtype)
        problem = dims_problem(dims, name)
        if problem:
            refuse("shapes", shapes, "dims that memory can hold", f"one {problem}")
        specs.append(Spec.of(dims, name, lod_level=check_int("lod_levels", level, minimum=0)))
    return specs


def open_files(
    filenames: Sequence[str] | str,
    shapes: Sequence[Sequence[int]],
    lod_levels: Sequence[int],
    dtypes: Sequence[Any],
    thread_num: int | None = None,
    buffer_size: int | None = None,
    pass_num: int = 1,
    is_test: bool | None = None,
) -> RecordReader:
    """Read the files that :mod:`fluidlite.recordio_writer` wrote, one after another, one record for each run.

    Runs of the program take a record each, from the first run on, until they raise ``fluid.core.EOFException``;
    ``reader.reset()`` restarts with the next run.

    shapes: Dims of each field of a record, the batch's (-1) included
    thread_num, buffer_size, is_test: Not used: the order is always that of the files
    pass_num: The number of passes over the files in an epoch
    """
    names = [filenames] if isinstance(filenames, str) else filenames
    if isinstance(names, Variable) or not hasattr(names, "__iter__"):
        refuse("filenames", filenames, "a list of file names")
    names = list(names)
    if not names or not all(isinstance(name, str) for name in names):
        refuse("filenames", filenames, "a list of file names")
    times = check_int("pass_num", pass_num, minimum=1)
    specs = _specs(shapes, lod_levels, dtypes)
    return RecordReader(records_of_files(names, specs, times), specs)


def open_recordio_file(
    filename: str,
    shapes: Sequence[Sequence[int]],
    lod_levels: Sequence[int],
    dtypes: Sequence[Any],
    pass_num: int = 1,
    for_parallel: bool = True,
) -> RecordReader:
    """Read one file of records; see :func:`open_files`.

    shapes, lod_levels, dtypes, pass_num: As for :func:`open_files`
    for_parallel: Not used
    """
    if not isinstance(filename, str):
        refuse("filename", filename, "a file name")
    return open_files([filename], shapes, lod_levels, dtypes, pass_num=pass_num)


def random_data_generator(
    low: float, high: float, shapes: Sequence[Sequence[int]], lod_levels: Sequence[int], for_parallel: bool = True
) -> RecordReader:
    """An endless reader of uniform float32 numbers, one batch for each run, to test a program without data.

    low, high: The range
    shapes: All dims of each variable, none of them -1
    lod_levels: 0 for each
    for_parallel: Not used
    """
    for argument, number in (("low", low), ("high", high)):
        if isinstance(number, (bool, str, Variable)) or not hasattr(number, "__float__"):
            refuse(argument, number, "a number")
    if not float(low) <= float(high):
        refuse("low", low, f"a number that is not above high ({high})")
    specs = _specs(shapes, lod_levels, ["float32"] * (len(shapes) if hasattr(shapes, "__len__") else 0))
    if any(spec.size < 0 or spec.lod_level for spec in specs):
        refuse("shapes", shapes, "shapes without -1, and LoD levels of 0")
    seed = default_main_program().random_seed
    return RecordReader(random_records(float(low), float(high), specs, abs(seed) or None), specs)


def _check_reader(reader: Any) -> RecordReader:
    if not isinstance(reader, RecordReader):
        refuse("reader", reader, "a reader, such as open_files makes")
    return reader


def shuffle(reader: RecordReader, buffer_size: int) -> RecordReader:
    """Shuffle a reader's records within a buffer of ``buffer_size`` records."""
    return _check_reader(reader).over(readers.shuffle, check_int("buffer_size", buffer_size, minimum=1))


def batch(reader: RecordReader, batch_size: int) -> RecordReader:
    """Concatenate ``batch_size`` records of a reader along their first dims; an incomplete last batch is dropped."""
    return _check_reader(reader).over(_batch_records, check_int("batch_size", batch_size, minimum=1))


def _batch_records(records: Records, size: int) -> Records:
    return readers.map_readers(concatenated, batches(records, size, drop_last=True))
