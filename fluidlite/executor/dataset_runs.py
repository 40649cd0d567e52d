"""Runs of a program over the batches of a dataset: what ``Executor.train_from_dataset`` does."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Any, Protocol

import numpy as np

from fluidlite.base.arguments import listed, mapped, name_of, number, whole
from fluidlite.base.errors import FetchError, ProgramError
from fluidlite.platform.place import Place
from fluidlite.program.program import Program, default_main_program
from fluidlite.program.scope import Scope


class Epoch(Iterator[Mapping[str, Any]], Protocol):
    """Feeds, one after another; closing it ends what makes them."""

    def close(self) -> None: ...


class Dataset(Protocol):
    """What a run over a dataset needs of it; see ``fluid.DatasetFactory``."""

    def epoch(self, place: Place, threads: int) -> Epoch:
        """Begin to read: batches on a place, made by so many threads at most (0: as the dataset says)."""
        ...


class FetchHandler:
    """What is told the values of variables now and then while a dataset is read; a subclass says ``handler``.

    Parameters
    ----------
    var_dict : mapping of str to Variable
    period_secs : float
        Seconds between two calls, at least.
    """

    def __init__(self, var_dict: Mapping[str, Any] | None = None, period_secs: float = 60) -> None:
        self.var_dict = mapped("FetchHandler: var_dict", var_dict, "a mapping of names to variables")
        self.period_secs = number("FetchHandler: period_secs", period_secs)

    def handler(self, res_dict: dict[str, Any]) -> None:
        """Be told the values, as arrays, by the names of ``var_dict``; here: print the first number of each."""
        sys.stdout.write("".join(f"{key}: {np.ravel(value)[0]} " for key, value in res_dict.items()) + "\n")


def run_over(
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
    fetches = listed("fetch_list", fetch_list or [], "a list of variables")
    names = [str(name_of(each)) for each in fetches]
    texts = listed("fetch_info", names if fetch_info is None else fetch_info, "a list of texts")
    if len(texts) != len(fetches):
        raise FetchError(f"fetch_info has {len(texts)} texts for the {len(fetches)} variables of fetch_list")
    period = whole("print_period", print_period)
    if period < 1:
        raise ProgramError(f"print_period is {period}; expected an int of 1 or more")
    inner = getattr(program, "_program", program)  # of a CompiledProgram
    known = inner.global_block().vars if isinstance(inner, Program) else {}
    told = list(fetch_handler.var_dict.values()) if fetch_handler is not None else []
    last = time.monotonic()
    profiled: Any = nullcontext()
    if debug:
        from fluidlite.profiler import profiler

        profiled = profiler("All", "total", None)
    with profiled, closing(dataset.epoch(executor.place, whole("thread", thread))) as feeds:
        for count, feed in enumerate(feeds, 1):
            shown = fetches if count % period == 0 else []
            due = fetch_handler is not None and time.monotonic() - last >= fetch_handler.period_secs
            wanted = [*shown, *(told if due else [])]
            given = {name: value for name, value in feed.items() if name in known} or feed
            found = executor.run(program, given, wanted, scope=scope, return_numpy=False)
            values = [np.asarray(value) for value in found]
            if shown:
                line = ", ".join(f"{text}: {_text(value)}" for text, value in zip(texts, values, strict=False))
                sys.stdout.write(f"time: [{time.strftime('%Y-%m-%d %H:%M:%S')}], batch: [{count}], {line}\n")
                sys.stdout.flush()
            if due and fetch_handler is not None:
                fetch_handler.handler(dict(zip(fetch_handler.var_dict, values[len(shown) :], strict=True)))
                last = time.monotonic()


def _text(value: Any) -> str:
    return f"[{', '.join(map(str, value.ravel().tolist()))}]"
