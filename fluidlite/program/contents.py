"""What a program is made of: an edit in place is noted by the program, or refused with what to call instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

from fluidlite.base.errors import ProgramError

if TYPE_CHECKING:
    from fluidlite.program.operator import Operator
    from fluidlite.program.program import Program

SET_ATTR = "an operator's attributes cannot be changed in place: they are checked\n  Do: op.set_attr(name, value)"
RENAME = (
    "the variables of an operator's slots cannot be changed in place\n"
    "  Do: op.rename_input(old, new) or op.rename_output(old, new)"
)
REPLACE = "the type of an operator cannot be changed\n  Do: block.insert_op(index, type, ...), then block.remove_op"


class Operators(list["Operator"]):
    """The operators of a block; the program notes each change of the list, and caches are not asked for the old one."""

    __slots__ = ("program",)

    def __init__(self, program: Program, operators: Iterable[Operator] = ()) -> None:
        super().__init__(operators)
        self.program = program

    def __reduce__(self) -> Any:
        return list, (list(self),)  # a copy is a list


class Attributes(dict[str, Any]):
    """Attributes or hints of an operator, to be read."""

    __slots__ = ()
    _do = SET_ATTR

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


class Slots(dict[str, list[str]]):
    """Names of variables by slot, to be read."""

    __slots__ = ()
    _do = RENAME

    def __reduce__(self) -> Any:
        return dict, ({slot: list(names) for slot, names in self.items()},)


class Names(list[str]):
    """Names of the variables of a slot, to be read."""

    __slots__ = ()
    _do = RENAME

    def __reduce__(self) -> Any:
        return list, (list(self),)


def slots(names: Mapping[str, list[str]]) -> Slots:
    """Slots of an operator, of names by slot."""
    return Slots(zip(names, map(Names, names.values()), strict=True))


def noted(name: str) -> Any:
    """An attribute of a variable: its program notes when it changes. It is read without a call of Python's."""
    held = f"_held_{name}"

    def write(self: Any, value: Any) -> None:
        known = self.__dict__
        if held not in known or known[held] != value:
            known[held] = value
            self.block.program.touch()

    return property(attrgetter(held), write)


def fixed(path: str, do: str) -> Any:
    """An attribute of an operator that is read from ``path``; ``do`` says what to call to change it."""

    def write(self: object, value: object) -> NoReturn:
        raise ProgramError(do)

    return property(attrgetter(path), write)


def _noting(change: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(change)
    def method(self: Operators, *args: Any, **kwargs: Any) -> Any:
        try:
            return change(self, *args, **kwargs)
        finally:
            self.program.touch()

    return method


def _refusing(change: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(change)
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise ProgramError(self._do)

    return method


_BOTH = ("__setitem__", "__delitem__", "clear", "pop")
_OF_LISTS = (*_BOTH, "__iadd__", "__imul__", "append", "extend", "insert", "remove", "reverse", "sort")
_OF_DICTS = (*_BOTH, "__ior__", "popitem", "setdefault", "update")

for _kind, _names, _made in (
    (Operators, _OF_LISTS, _noting),
    (Names, _OF_LISTS, _refusing),
    (Slots, _OF_DICTS, _refusing),
    (Attributes, _OF_DICTS, _refusing),
):
    for _name in _names:
        setattr(_kind, _name, _made(getattr(_kind, _name)))
