"""Readers of a program, which feed some of its variables at each run, as Fluid's ``py_reader`` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fluidlite.base.errors import FeedError
from fluidlite.platform.place import Place


class ProgramReader(Protocol):
    """Provides the values of some variables, batch by batch.

    ``feed_names``: the names of the variables.
    ``started``: whether it has been started and not reset.
    """

    @property
    def name(self) -> str: ...

    @property
    def feed_names(self) -> Sequence[str]: ...

    @property
    def started(self) -> bool: ...

    def next_feed(self, place: Place) -> Mapping[str, Any]:
        """Return the next batch, for a run on a place.

        Raises EOFException if there are no more.
        Raises ProgramError if it was not started.
        """
        ...


class CompleteFeed(dict[str, Any]):
    """A feed that has the values of the program's readers already."""


def fed_by_readers(program: Any, feed: Any, place: Place) -> Any:
    """Return a feed with the values of the program's readers; an invalid or a complete one is returned unchanged.

    A reader that was not started, and whose variables the user feeds, is skipped.

    Raises FeedError if the user feeds a variable of a reader that was started.
    """
    if isinstance(feed, (list, tuple)):
        if len(feed) > 1:
            return feed
        feed = feed[0] if feed else None
    if isinstance(feed, CompleteFeed) or (feed is not None and not isinstance(feed, Mapping)):
        return feed
    merged = CompleteFeed(feed or {})
    block = program.global_block()
    for reader in program.readers:
        fed_names = [name for name in reader.feed_names if name in merged]
        if fed_names and reader.started:
            raise FeedError(
                f"the feed names {fed_names[0]!r}, which the reader {reader.name!r} gives"
                "\n  Do: leave it out of the feed, or reset() the reader"
            )
        if len(fed_names) == len(reader.feed_names):
            continue
        values = reader.next_feed(place)
        merged.update((name, value) for name, value in values.items() if block.has_var(name))
    return merged
