"""Input slots with what documentation says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fluidlite.base.errors import RegistryError
from fluidlite.program.opdef import Slot


def with_docs(slots: Iterable[Slot | str], docs: Mapping[str, str]) -> tuple[Slot, ...]:
    """Slots, some of which get a text for the operator's and the layer's documentation.

    Raises
    ------
    RegistryError
        If a text is of no slot.
    """
    made = [slot if isinstance(slot, Slot) else Slot(slot) for slot in slots]
    if not docs.keys() <= {slot.name for slot in made}:
        raise RegistryError(f"texts of {', '.join(docs)}; expected of slots: {', '.join(slot.name for slot in made)}")
    return tuple(replace(slot, doc=docs.get(slot.name, slot.doc)) for slot in made)
