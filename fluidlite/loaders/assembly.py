"""Assembly of batches: collects samples, or columns of samples, into host arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fluidlite.base.arguments import refuse_mask
from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import FeedError, LoaderError
from fluidlite.program.variable import Variable
from fluidlite.tensor.columns import Column, fitted
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Lod, Spec
from fluidlite.tensor.var_type import dtype_of

Array = np.ndarray[Any, Any]


class HostField(NamedTuple):
    """One field of a batch on the host, with fluidlite's name of its dtype."""

    name: str
    array: Array
    dtype: str
    lod: Lod


class HostBatch(NamedTuple):
    """A batch on the host: its fields and number of samples."""

    fields: list[HostField]
    size: int


class Field(NamedTuple):
    """The declaration of a field: its name, and its spec if known."""

    name: str
    spec: Spec | None


def fields_of(names: Any) -> tuple[Field, ...] | None:
    """Convert a loader's argument ``names`` to fields: a list of names and Variables, or None.

    Raises LoaderError if it contains anything else, or a name twice.
    """
    if names is None:
        return None
    listed = [names] if isinstance(names, (str, Variable)) else names
    if isinstance(listed, Mapping) or not isinstance(listed, Sequence) or not listed:
        raise LoaderError(f"names is {names!r:.80}; expected a list of names or Variables, one a field of a sample")
    fields: list[Field] = []
    for item in listed:
        if isinstance(item, Variable):
            fields.append(Field(item.name, item.spec))
        elif isinstance(item, str) and item:
            fields.append(Field(item, None))
        elif isinstance(item, Field):
            fields.append(item)
        else:
            raise LoaderError(f"names holds {item!r:.60}; expected names or Variables, one a field of a sample")
    if len({field.name for field in fields}) != len(fields):
        raise LoaderError(f"names has a name twice: {', '.join(field.name for field in fields)}")
    return tuple(fields)


class Assembler:
    """Assembles host batches.

    ``fields``: None: samples are mappings, whose keys are the names of the fields.
    """

    def __init__(self, fields: tuple[Field, ...] | None) -> None:
        self.fields = fields

    def from_samples(self, samples: Sequence[Any]) -> HostBatch:
        """Assemble samples: mappings, tuples or lists of fields, or single arrays for a single field.

        Raises FeedError, naming sample and field, for ragged samples, missing fields, or a wrong dtype or dims.
        """
        fields = self.fields or self._named_by(samples[0])
        columns = [Column(field.name, field.spec) for field in fields]
        for number, sample in enumerate(samples):
            for column, value in zip(columns, self._values(sample, number, fields), strict=True):
                column.take(value, number)
        host_fields = []
        for column in columns:
            array, lod = column.values()
            host_fields.append(self._checked(column.name, array, lod))
        return HostBatch(host_fields, len(samples))

    def _named_by(self, sample: Any) -> tuple[Field, ...]:
        if isinstance(sample, Mapping) and sample:
            return tuple(Field(str(name), None) for name in sample)
        raise LoaderError(
            f"a sample is {type(sample).__name__}, which does not name its fields"
            "\n  Do: names=[...], one name or Variable a field"
        )

    def _values(self, sample: Any, number: int, fields: tuple[Field, ...]) -> Sequence[Any]:
        if isinstance(sample, Mapping):
            try:
                return [sample[field.name] for field in fields]
            except KeyError as exc:
                has = ", ".join(map(str, sample)) or "none"
                raise FeedError(f"sample {number} has no field {exc.args[0]!r}; its fields are {has}") from None
        if isinstance(sample, (tuple, list)):
            if len(sample) == len(fields):
                return sample
            if len(fields) > 1 or isinstance(sample, tuple):
                names = ", ".join(field.name for field in fields)
                raise FeedError(f"sample {number} has {len(sample)} fields; expected {len(fields)}: {names}")
        if len(fields) == 1:
            return (sample,)
        names = ", ".join(field.name for field in fields)
        raise FeedError(f"sample {number} is {type(sample).__name__} {sample!r:.60}; expected a field each for {names}")

    def from_columns(
        self, columns: Mapping[str, Any] | Sequence[Any], size: int | None = None, lods: Mapping[str, Lod] | None = None
    ) -> HostBatch:
        """Assemble a whole batch of the source: arrays, or Tensors with their LoD.

        ``columns``: arrays by name, or a sequence of them in the order of the fields.
        ``size``: the number of samples that each field must have; None: that of the first field, without a check.
        ``lods``: by name, the LoDs of arrays of sequences.
        """
        pairs = self._pairs(columns)
        host_fields, sizes = [], {}
        for field, value in pairs:
            host_field = self._column(field, value, (lods or {}).get(field.name, ()))
            host_fields.append(host_field)
            sizes[field.name] = len(host_field.lod[0]) - 1 if host_field.lod else host_field.array.shape[0]
        if size is not None and set(sizes.values()) != {size}:
            counts = ", ".join(f"{name}: {count}" for name, count in sizes.items())
            raise FeedError(f"a batch has {counts} samples; expected {size} in each field")
        return HostBatch(host_fields, next(iter(sizes.values())))

    def _pairs(self, columns: Any) -> list[tuple[Field, Any]]:
        if isinstance(columns, Mapping):
            fields = self.fields or tuple(Field(str(name), None) for name in columns)
            lacking = [field.name for field in fields if field.name not in columns]
            if lacking or not fields:
                has = ", ".join(map(str, columns)) or "none"
                raise FeedError(f"a batch lacks the field {', '.join(lacking) or '(any)'}; its fields are {has}")
            return [(field, columns[field.name]) for field in fields]
        if self.fields is None:
            self._named_by(columns)
        assert self.fields is not None
        if isinstance(columns, (np.ndarray, Tensor)) and len(self.fields) == 1:
            columns = (columns,)
        if not isinstance(columns, (tuple, list)) or len(columns) != len(self.fields):
            got = f"{len(columns)} fields" if isinstance(columns, (tuple, list)) else type(columns).__name__
            names = ", ".join(field.name for field in self.fields)
            raise FeedError(f"a batch is {got}; expected an array each for {names}")
        return list(zip(self.fields, columns, strict=True))

    def _column(self, field: Field, value: Any, lod: Lod) -> HostField:
        if isinstance(value, Tensor):
            lod = value.spec.lod if value.spec is not None else ()
            value = value.numpy()
        refuse_mask(f"field {field.name!r} of a batch", value, FeedError)
        levels = field.spec.lod_level if field.spec is not None else 0
        if levels and not lod:
            if isinstance(value, np.ndarray):
                raise FeedError(
                    f"field {field.name!r} has {levels} LoD level(s); an array does not tell them"
                    "\n  Do: fluid.create_lod_tensor(array, [lengths], place), or samples that are lists of rows"
                )
            column = Column(field.name, field.spec)
            for number, item in enumerate(value):
                column.take(item, number)
            array, lod = column.values()
            return self._checked(field.name, array, lod)
        if not isinstance(value, np.ndarray) and hasattr(value, "__array__"):
            value = np.asarray(value)
        if not isinstance(value, np.ndarray) and hasattr(value, "__len__"):
            column = Column(field.name)
            column.rows = list(value)
            value, _ = column.values()
        if not isinstance(value, np.ndarray) or not value.ndim:
            raise FeedError(
                f"field {field.name!r} of a batch is no array but {value!r:.60}; its first dim counts the samples"
            )
        if lod and lod[-1][-1] != value.shape[0]:
            raise FeedError(
                f"field {field.name!r} has {value.shape[0]} rows, but its LoD covers {lod[-1][-1]}"
                "\n  Do: let batch_transform keep the rows of sequences"
            )
        if field.spec is not None:
            value = fitted(field.name, field.spec, value, value.shape[0])
        return self._checked(field.name, value, lod)

    @staticmethod
    def _checked(name: str, array: Array, lod: Lod) -> HostField:
        """Return a field with the name of its dtype.

        Raises FeedError if fluidlite has no such dtype.
        """
        native = array.dtype.newbyteorder("=")
        if native not in NUMPY.values():
            raise FeedError(f"field {name!r} is {array.dtype}, which is no data type of fluidlite; cast it first")
        return HostField(name, array, dtype_of(native), lod)
