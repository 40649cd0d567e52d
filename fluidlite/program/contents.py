"""Containers and attributes of a program's objects: an edit increments the program's version counter, or is refused."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from operator import attrgetter
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, get_args

from fluidlite.base.arguments import check_bool, check_list
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
    """The operators of a block; each change of the list increments the program's version counter."""

    __slots__ = ("block",)
    kind: ClassVar[type[Operator]]
    """The class of operators, which is defined later."""

    def __init__(self, block: Block, operators: Iterable[Operator] = ()) -> None:
        super().__init__(_operators(block, "block.ops", operators))
        self.block = block

    def __reduce__(self) -> Any:
        return list, (list(self),)  # a copy is a list


class Attributes(dict[str, Any]):
    """Attributes or hints of an operator, read-only."""

    __slots__ = ()
    _do = SET_ATTR

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


class Slots(dict[str, list[str]]):
    """Names of variables by slot, read-only."""

    __slots__ = ()
    _do = RENAME

    def __reduce__(self) -> Any:
        return dict, ({slot: list(names) for slot, names in self.items()},)


class Names(list[str]):
    """Names of the variables of a slot, read-only."""

    __slots__ = ()
    _do = RENAME

    def __reduce__(self) -> Any:
        return list, (list(self),)


def slots(names: Mapping[str, list[str]]) -> Slots:
    """Return the slots of an operator from names by slot."""
    return Slots(zip(names, map(Names, names.values()), strict=True))


def tracked(name: str, kinds: type | UnionType = object) -> Any:
    """Return a property of a variable that touches the program when it changes; reads make no Python call."""
    storage = f"_held_{name}"

    def write(self: Any, value: Any) -> None:
        if kinds is bool and value.__class__ is not bool:
            value = check_bool(f"{name} of variable {self.name!r}", value)
        if not isinstance(value, kinds):
            raise ProgramError(f"{name} of variable {self.name!r} is {value!r:.60}; expected {_kind_names(kinds)}")
        values = self.__dict__
        # of a dict, == would compare variables, which appends operators
        changed = storage not in values or kinds is dict or values[storage] != value
        values[storage] = value  # also if it is equal: a copy keeps its own object
        if changed:
            self.block.program.touch()

    return property(attrgetter(storage), write)


def read_only(path: str, do: str) -> Any:
    """Return a read-only property that reads ``path``; its error says ``do``, what to call to change it."""

    def write(self: object, value: object) -> NoReturn:
        raise ProgramError(f"{self}: {do}")

    return property(attrgetter(path), write)


def _kind_names(kinds: type | UnionType) -> str:
    return " or ".join(kind.__name__.replace("NoneType", "None") for kind in get_args(kinds) or (kinds,))


def _operators(block: Block, what: str, operators: Any) -> list[Operator]:
    """Return the operators that a user puts into a block's list; raise ProgramError for anything else."""
    items = check_list(what, operators, "operators")
    for op in items:
        if not isinstance(op, Operators.kind):
            raise ProgramError(
                f"{what} got {type(op).__name__} {op!r:.60}; expected an operator\n  Do: block.append_op(type, ...)"
            )
        if op.block is not block:
            owner = f"block {op.block.idx}" if op.block.program is block.program else "another program"
            example = f", which begins with {block.ops[0]}" if block.ops else ""
            raise ProgramError(
                f"{what} got {op} of {owner}; expected one that was made in this block{example}\n"
                "  Do: block.append_op(op.type, inputs, outputs, op.attrs), of variables of this block"
            )
    return items


def _owners(contents: Any) -> list[Operator]:
    """Return the operators that own attributes or slots, for errors: one, or its copies in copies of the program."""
    referrers = gc.get_referrers(contents)
    indirect = [owner for referrer in referrers if isinstance(referrer, Slots) for owner in _owners(referrer)]
    return [referrer for referrer in referrers if isinstance(referrer, Operators.kind)] + indirect


def _checking(change: Callable[..., Any]) -> Callable[..., Any]:
    touching, name = _touching(change), change.__name__

    @wraps(change)
    def method(self: Operators, *args: Any) -> Any:
        if name in ("append", "insert") or (name == "__setitem__" and not isinstance(args[0], slice)):
            _operators(self.block, f"block.ops.{name}", args[-1:])
            return touching(self, *args)
        return touching(self, *args[:-1], _operators(self.block, f"block.ops.{name}", *args[-1:]))

    return method


def _touching(change: Callable[..., Any]) -> Callable[..., Any]:
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


_COMMON_METHODS = ("__setitem__", "__delitem__", "clear", "pop")
_INSERTING_METHODS = ("__setitem__", "__iadd__", "append", "extend", "insert")
_LIST_METHODS = (*_COMMON_METHODS, "__iadd__", "__imul__", "append", "extend", "insert", "remove", "reverse", "sort")
_DICT_METHODS = (*_COMMON_METHODS, "__ior__", "popitem", "setdefault", "update")

for _kind, _names, _wrap in (
    (Operators, set(_LIST_METHODS) - set(_INSERTING_METHODS), _touching),
    (Operators, _INSERTING_METHODS, _checking),
    (Names, _LIST_METHODS, _refusing),
    (Slots, _DICT_METHODS, _refusing),
    (Attributes, _DICT_METHODS, _refusing),
):
    for _name in _names:
        setattr(_kind, _name, _wrap(getattr(_kind, _name)))
