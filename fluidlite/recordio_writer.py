"""``fluid.recordio_writer``: writes files of records from readers, in :mod:`fluidlite.loaders.record_file`'s format."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fluidlite.base.arguments import check_int
from fluidlite.base.errors import LoaderError
from fluidlite.loaders.record_file import Compressor, RecordIOWriter

__all__ = ["convert_reader_to_recordio_file", "convert_reader_to_recordio_files", "create_recordio_writer"]

_SUFFIX = ".recordio"


@contextmanager
def create_recordio_writer(
    filename: str, compressor: int = Compressor.Snappy, max_num_records: int = 1000
) -> Iterator[RecordIOWriter]:
    """A writer of a file of records, which is created if the block ends without an error."""
    with RecordIOWriter(filename, compressor, max_num_records) as writer:
        yield writer


def _order(feeder: Any, feed_order: Sequence[str] | None) -> Sequence[str]:
    names: Sequence[str] = feeder.feed_names
    if feed_order is None:
        return names
    unknown = [name for name in feed_order if name not in names]
    if unknown:
        raise LoaderError(f"feed_order names {unknown[0]!r}; the feeder has {', '.join(names)}")
    return feed_order


def _write(writer: RecordIOWriter, batches: Iterable[Any], feeder: Any, names: Sequence[str]) -> int:
    count = 0
    for batch in batches:
        tensors = feeder.feed(batch)
        for name in names:
            writer.append_tensor(tensors[name])
        writer.complete_append_tensor()
        count += 1
    return count


def convert_reader_to_recordio_file(
    filename: str,
    reader_creator: Callable[[], Iterable[Any]],
    feeder: Any,
    compressor: int = Compressor.Snappy,
    max_num_records: int = 1000,
    feed_order: Sequence[str] | None = None,
) -> int:
    """Write the batches of a reader into a file, one record a batch.

    Parameters
    ----------
    filename : path
        On an error, the file is unchanged.
    reader_creator : callable
        Such as ``fluid.batch(reader, 32)``.
    feeder : DataFeeder
        Converts a batch to tensors.
    compressor : int
        One of ``fluid.core.RecordIOWriter.Compressor``: ``NoCompress``, or ``Snappy`` and ``Gzip`` (deflate, both).
    max_num_records : int
        Not used.
    feed_order : list of str, optional
        The fields of a record; default: the feeder's.

    Returns
    -------
    int
        The number of records.
    """
    names = _order(feeder, feed_order)
    with RecordIOWriter(filename, compressor, max_num_records) as writer:
        return _write(writer, reader_creator(), feeder, names)


def convert_reader_to_recordio_files(
    filename: str,
    batch_per_file: int,
    reader_creator: Callable[[], Iterable[Any]],
    feeder: Any,
    compressor: int = Compressor.Snappy,
    max_num_records: int = 1000,
    feed_order: Sequence[str] | None = None,
) -> int:
    """Write the batches of a reader into several files; ``a.recordio`` becomes ``a-00000.recordio`` and so on.

    Parameters
    ----------
    filename : path
        Ends with ``.recordio``.
    batch_per_file : int
        Records of a file, 1 or more.
    reader_creator, feeder, compressor, max_num_records, feed_order
        As for :func:`convert_reader_to_recordio_file`.

    Returns
    -------
    int
        The number of records.
    """
    stem, suffix = os.path.splitext(filename)
    if suffix != _SUFFIX:
        raise LoaderError(f"filename is {filename!r}; expected one that ends with {_SUFFIX}")
    if check_int("batch_per_file", batch_per_file) < 1:
        raise LoaderError(f"batch_per_file is {batch_per_file!r}; expected 1 or more")
    names = _order(feeder, feed_order)
    batches, total = iter(reader_creator()), 0
    for number in itertools.count():
        first = list(itertools.islice(batches, 1))
        if not first:
            return total
        rest = itertools.chain(first, itertools.islice(batches, batch_per_file - 1))
        with RecordIOWriter(f"{stem}-{number:05d}{suffix}", compressor, max_num_records) as writer:
            total += _write(writer, rest, feeder, names)
    raise AssertionError("count has no end")
