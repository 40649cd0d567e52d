"""Runs of a program over the batches of a dataset, for ``Executor.train_from_dataset``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Any, Protocol

import numpy as np

from fluidlite.base.arguments import check_int, check_list, check_mapping, name_of, number
from fluidlite.base.errors import FetchError, ProgramError
from fluidlite.platform.place import Place
from fluidlite.program.program import Program, default_main_program
from fluidlite.program.scope import Scope


class Epoch(Iterator[Mapping[str, Any]], Protocol):
    """An iterator of feeds; closing it stops the threads that make them."""

    def close(self) -> None: ...


class Dataset(Protocol):
    """The protocol of datasets; see ``fluid.DatasetFactory``."""

    def epoch(self, place: Place, threads: int) -> Epoch:
        """Return the batches of one epoch on a place, made by at most ``threads`` threads (0: as many as set)."""
        ...


class FetchHandler:
    """Receives the values of variables periodically during a run over a dataset; subclasses override ``handler``.

    Parameters
    ----------
    var_dict : mapping of str to Variable
    period_secs : float
        Minimum seconds between two calls.
    """

    def __init__(self, var_dict: Mapping[str, Any] | None = None, period_secs: float = 60) -> None:
        self.var_dict = check_mapping("FetchHandler: var_dict", var_dict, "a mapping of names to variables")
        self.period_secs = number("FetchHandler: period_secs", period_secs)

    def handler(self, res_dict: dict[str, Any]) -> None:
        """Handle the values, arrays by the names of ``var_dict``; the default prints the first element of each."""
        sys.stdout.write("".join(f"{key}: {np.ravel(value)[0]} " for key, value in res_dict.items()) + "\n")


def run_dataset(
    executor: Any,
    program: Any,
    dataset: Dataset | None,
    scope: Scope | None,
    thread: int,
    debug: bool,
    fetch_list: Sequence[Any] | None,
    fetch_info: Sequence[str] | None,
    print_period: int,
    fetch_handler: FetchHandler | None,
) -> None:
    """Run a program with each batch of a dataset; arguments are those of :meth:`Executor.train_from_dataset`."""
    if dataset is None or not hasattr(dataset, "epoch"):
        raise ProgramError(
            f"the dataset is {type(dataset).__name__}; expected one that fluid.DatasetFactory().create_dataset() makes"
        )
    program = default_main_program() if program is None else program
    fetches = check_list("fetch_list", fetch_list or [], "a list of variables")
    names = [str(name_of(each)) for each in fetches]
    texts = check_list("fetch_info", names if fetch_info is None else fetch_info, "a list of texts")
    if len(texts) != len(fetches):
        raise FetchError(f"fetch_info has {len(texts)} texts for the {len(fetches)} variables of fetch_list")
    period = check_int("print_period", print_period)
    if period < 1:
        raise ProgramError(f"print_period is {period}; expected an int of 1 or more")
    inner_program = getattr(program, "_program", program)  # of a CompiledProgram
    variables = inner_program.global_block().vars if isinstance(inner_program, Program) else {}
    handler_variables = list(fetch_handler.var_dict.values()) if fetch_handler is not None else []
    last = time.monotonic()
    profiling: Any = nullcontext()
    if debug:
        from fluidlite.profiler import profiler

        profiling = profiler("All", "total", None)
    with profiling, closing(dataset.epoch(executor.place, check_int("thread", thread))) as feeds:
        for count, feed in enumerate(feeds, 1):
            printed = fetches if count % period == 0 else []
            is_due = fetch_handler is not None and time.monotonic() - last >= fetch_handler.period_secs
            requested = [*printed, *(handler_variables if is_due else [])]
            fed = {name: value for name, value in feed.items() if name in variables} or feed
            results = executor.run(program, fed, requested, scope=scope, return_numpy=False)
            values = [np.asarray(value) for value in results]
            if printed:
                line = ", ".join(f"{text}: {_text(value)}" for text, value in zip(texts, values, strict=False))
                sys.stdout.write(f"time: [{time.strftime('%Y-%m-%d %H:%M:%S')}], batch: [{count}], {line}\n")
                sys.stdout.flush()
            if is_due and fetch_handler is not None:
                fetch_handler.handler(dict(zip(fetch_handler.var_dict, values[len(printed) :], strict=True)))
                last = time.monotonic()


def _text(value: Any) -> str:
    return f"[{', '.join(map(str, value.ravel().tolist()))}]"
