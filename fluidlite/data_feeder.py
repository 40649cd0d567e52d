"""DataFeeder: converts batches of samples to named tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fluidlite.base.arguments import check_instance, check_list
from fluidlite.base.errors import DtypeError, FeedError
from fluidlite.compat.installation import place_count, places_like
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.program import Program, default_main_program
from fluidlite.program.variable import Variable
from fluidlite.tensor.columns import Column
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.var_type import dtype_of

convert_dtype = dtype_of


class DataFeeder:
    """Converts a batch of samples to a feed of ``Executor.run``.

    Parameters
    ----------
    feed_list : list of Variable or name
        The fields of one sample, in order.
    place : Place or str
        The place of the tensors.
    program : Program, optional
        The program of the names; default: the default main program.
    """

    def __init__(self, feed_list: Sequence[Variable | str], place: PlaceLike, program: Program | None = None) -> None:
        main = (
            check_instance("program", program, Program, error=FeedError)
            if program is not None
            else default_main_program()
        )
        block = main.global_block()
        self.place = Place.parse(place)
        self.feed_vars: list[Variable] = []
        for item in check_list("feed_list", feed_list, "variables or their names", FeedError):
            variable = block.var(item) if isinstance(item, str) else item
            if not isinstance(variable, Variable):
                raise FeedError(f"feed_list holds {item!r}; expected variables or their names")
            self.feed_vars.append(variable)
        self.feed_names = [variable.name for variable in self.feed_vars]

    def feed(self, iterable: Iterable[Sequence[Any]]) -> dict[str, Tensor]:
        """Convert a batch to tensors.

        Parameters
        ----------
        iterable : list of samples
            Each has one field for each variable; a field of a variable with LoD levels is a list of rows
            (of lists of rows, ..., by levels).

        Raises
        ------
        FeedError
            A field does not fit its variable.
        """
        return self._on(self.place, iterable)

    def _on(self, place: Place, iterable: Iterable[Sequence[Any]]) -> dict[str, Tensor]:
        columns = [_column(variable) for variable in self.feed_vars]
        for number, sample in enumerate(
            check_list("the batch", iterable, "samples, each with a field for each variable", FeedError)
        ):
            if isinstance(sample, (str, bytes)) or not hasattr(sample, "__len__"):
                fields = ", ".join(self.feed_names)
                raise FeedError(f"sample {number} is {sample!r:.60}; expected one field each for {fields}")
            if len(sample) != len(columns):
                raise FeedError(
                    f"sample {number} has {len(sample)} fields; expected {len(columns)}: {', '.join(self.feed_names)}"
                )
            for column, value in zip(columns, sample, strict=True):
                column.take(value, number)
        return {column.name: _tensor(column, place) for column in columns}

    def feed_parallel(
        self, iterable: Iterable[Iterable[Sequence[Any]]], num_places: int | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """Convert several batches to tensors, each on its own place.

        Parameters
        ----------
        iterable : list of batches
            One for each place.
        num_places : int, optional
            Default: the devices of the feeder's kind; on the host Fluid's ``CPU_NUM``, else one for each core.
        """
        places = places_like(self.place, place_count(self.place, num_places))
        batches = list(iterable)
        if len(batches) != len(places):
            raise FeedError(f"feed_parallel got {len(batches)} batches for {len(places)} places; expected one for each")
        for place, batch in zip(places, batches, strict=True):
            yield self._on(place, batch)

    def decorate_reader(
        self,
        reader: Callable[[], Iterable[Any]],
        multi_devices: bool,
        num_places: int | None = None,
        drop_last: bool = True,
    ) -> Callable[[], Iterator[Any]]:
        """Return a reader of feeds for ``Executor.run``.

        Parameters
        ----------
        reader : callable
            Returns an iterable of batches at each call.
        multi_devices : bool
            Yield lists of feeds, one for each place.
        num_places : int, optional
            As in :meth:`feed_parallel`.
        drop_last : bool
            Whether to drop last batches that are fewer than the places; otherwise they are an error.
        """

        def decorated() -> Iterator[Any]:
            if not multi_devices:
                yield from map(self.feed, reader())
                return
            count = place_count(self.place, num_places)
            group: list[Any] = []
            for batch in reader():
                group.append(batch)
                if len(group) == count:
                    yield list(self.feed_parallel(group, count))
                    group = []
            if group and not drop_last:
                raise FeedError(
                    f"the reader ends with {len(group)} batches for {count} places\n  Do: use drop_last=True, or a "
                    "reader whose number of batches the places divide"
                )

        return decorated


def _column(variable: Variable) -> Column:
    if variable.spec is None:
        raise FeedError(f"variable {variable.name!r} has no declared dims, so it cannot be fed by a DataFeeder")
    return Column(variable.name, variable.spec)


def _tensor(column: Column, place: Place) -> Tensor:
    array, lod = column.values()
    return Tensor().set(array, place, [list(level) for level in lod] or None)


def check_type(input: Any, input_name: str, expected_type: Any, op_name: str, extra_message: str = "") -> None:
    """Raise DtypeError unless an argument of a custom layer has a type, or one of several."""
    if not isinstance(input, expected_type):
        kinds = expected_type if isinstance(expected_type, tuple) else (expected_type,)
        expected = " or ".join(kind.__name__ for kind in kinds)
        actual = type(input).__name__
        raise DtypeError(
            f"{op_name}: argument {input_name!r} is {actual}; expected {expected}. {extra_message}".rstrip()
        )


def check_dtype(input_dtype: Any, input_name: str, expected_dtype: Any, op_name: str, extra_message: str = "") -> None:
    """Raise DtypeError unless a data type is one of those expected."""
    expected_dtypes = expected_dtype if isinstance(expected_dtype, (list, tuple, set)) else [expected_dtype]
    names = [
        name if isinstance(name, str) else dtype_of(name) for name in expected_dtypes
    ]  # names of Fluid's that are no dtype here stay texts
    dtype = dtype_of(input_dtype)
    if dtype not in names:
        expected = " or ".join(names)
        raise DtypeError(f"{op_name}: {input_name!r} is {dtype}; expected {expected}. {extra_message}".rstrip())


def check_variable_and_dtype(
    input: Any, input_name: str, expected_dtype: Any, op_name: str, extra_message: str = ""
) -> None:
    """Raise DtypeError unless an argument of a custom layer is a Variable of a data type, or of one of several."""
    check_type(input, input_name, Variable, op_name, extra_message)
    check_dtype(input.dtype, input_name, expected_dtype, op_name, extra_message)
