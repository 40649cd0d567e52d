"""What a program is made of: an edit in place is noted by the program, or refused with what to call instead."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from operator import attrgetter
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, get_args

from fluidlite.base.arguments import listed, truth
from fluidlite.base.errors import ProgramError

if TYPE_CHECKING:
    from fluidlite.program.block import Block
    from fluidlite.program.operator import Operator

SET_ATTR = "an operator's attributes cannot be changed in place: they are checked\n  Do: op.set_attr(name, value)"
RENAME = (
    "the variables of an operator's slots cannot be changed in place\n"
    "  Do: op.rename_input(old, new) or op.rename_output(old, new)"
)
REPLACE = "the type of an operator cannot be changed\n  Do: block.insert_op(index, type, ...), then block.remove_op"


class Operators(list["Operator"]):
    """The operators of a block; the program notes each change of the list, and caches are not asked for the old one."""

    __slots__ = ("block",)
    kind: ClassVar[type[Operator]]
    """The class of operators, which is made later."""

    def __init__(self, block: Block, operators: Iterable[Operator] = ()) -> None:
        super().__init__(_operators(block, "block.ops", operators))
        self.block = block

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


def noted(name: str, kinds: type | UnionType = object) -> Any:
    """An attribute of a variable: its program notes when it changes. It is read without a call of Python's."""
    held = f"_held_{name}"

    def write(self: Any, value: Any) -> None:
        if kinds is bool and value.__class__ is not bool:
            value = truth(f"{name} of variable {self.name!r}", value)
        if not isinstance(value, kinds):
            raise ProgramError(f"{name} of variable {self.name!r} is {value!r:.60}; expected {_said(kinds)}")
        known = self.__dict__
        changed = held not in known or kinds is dict or known[held] != value  # of variables in a dict, == makes others
        known[held] = value  # another object that is equal, too: a copy has its own
        if changed:
            self.block.program.touch()

    return property(attrgetter(held), write)


def fixed(path: str, do: str) -> Any:
    """An attribute of an operator that is read from ``path``; ``do`` says what to call to change it."""

    def write(self: object, value: object) -> NoReturn:
        raise ProgramError(f"{self}: {do}")

    return property(attrgetter(path), write)


def _said(kinds: type | UnionType) -> str:
    return " or ".join(each.__name__.replace("NoneType", "None") for each in get_args(kinds) or (kinds,))


def _operators(block: Block, what: str, given: Any) -> list[Operator]:
    """What is put into the operators of a block; or ProgramError, if something else is among it."""
    found = listed(what, given, "operators")
    for each in found:
        if not isinstance(each, Operators.kind):
            raise ProgramError(
                f"{what} got {type(each).__name__} {each!r:.60}; expected an operator\n  Do: block.append_op(type, ...)"
            )
        if each.block is not block:
            home = f"block {each.block.idx}" if each.block.program is block.program else "another program"
            begins = f", which begins with {block.ops[0]}" if block.ops else ""
            raise ProgramError(
                f"{what} got {each} of {home}; expected one that was made in this block{begins}\n"
                "  Do: block.append_op(op.type, inputs, outputs, op.attrs), of variables of this block"
            )
    return found


def _owners(held: Any) -> list[Operator]:
    """Who has these attributes or slots: one operator, or what copies of a program have of it. For errors."""
    found = gc.get_referrers(held)
    within = [owner for each in found if isinstance(each, Slots) for owner in _owners(each)]
    return [each for each in found if isinstance(each, Operators.kind)] + within


def _taking(change: Callable[..., Any]) -> Callable[..., Any]:
    noting, name = _noting(change), change.__name__

    @wraps(change)
    def method(self: Operators, *args: Any) -> Any:
        if name in ("append", "insert") or (name == "__setitem__" and not isinstance(args[0], slice)):
            _operators(self.block, f"block.ops.{name}", args[-1:])
            return noting(self, *args)
        return noting(self, *args[:-1], _operators(self.block, f"block.ops.{name}", *args[-1:]))

    return method


def _noting(change: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(change)
    def method(self: Operators, *args: Any, **kwargs: Any) -> Any:
        try:
            return change(self, *args, **kwargs)
        finally:
            self.block.program.touch()

    return method


def _refusing(change: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(change)
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        owner = next(iter(_owners(self)), None)
        raise ProgramError(f"{owner}: {self._do}" if owner is not None else self._do)

    return method


_BOTH = ("__setitem__", "__delitem__", "clear", "pop")
_TAKING = ("__setitem__", "__iadd__", "append", "extend", "insert")
_OF_LISTS = (*_BOTH, "__iadd__", "__imul__", "append", "extend", "insert", "remove", "reverse", "sort")
_OF_DICTS = (*_BOTH, "__ior__", "popitem", "setdefault", "update")

for _kind, _names, _made in (
    (Operators, set(_OF_LISTS) - set(_TAKING), _noting),
    (Operators, _TAKING, _taking),
    (Names, _OF_LISTS, _refusing),
    (Slots, _OF_DICTS, _refusing),
    (Attributes, _OF_DICTS, _refusing),
):
    for _name in _names:
        setattr(_kind, _name, _made(getattr(_kind, _name)))
