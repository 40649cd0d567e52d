"""A traced expression as array calls: Python source, one line a tensor.

The source is ``def compute(xp, F, H, context, io, N, K, a0, a1, ..., out0, out1, ...)``: ``H`` is
:mod:`array_functions`, ``N`` the numbers of the call (sizes, and what is computed of sizes and attributes), ``K`` a
list in which one call leaves to the next ones the arrays that are computed of ``N`` alone, ``a0`` ... what it reads,
``out0`` ... what it writes. What ends in a concatenation, a padding or other dims is written there part by part, not
made and then copied. On NumPy elementwise calls write where the result is to be, or where a tensor lay that is no
longer read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from fluidlite.base.dtypes import FLOATS
from fluidlite.expr.indexing import in_range
from fluidlite.expr.number import Number
from fluidlite.expr.number import number as as_number
from fluidlite.expr.tensor import Tensor, ordered
from fluidlite.expr.traced import Traced
from fluidlite.render.array_code import ArrayCode, array_names
from fluidlite.render.buffers import Buffers
from fluidlite.render.readers import (
    added_padding,
    adds_on,
    called_function,
    gathered_factor,
    has_all_dims,
    in_sum,
    index_dtype,
    made_by_reader,
    others_joined,
    reduces_windows,
    stored_at_once,
    summed_in_runs,
    takes_array,
    unspread,
    unwindows_one,
)
from fluidlite.render.results import (
    WRITING,
    maps_stored_at_once,
    not_overwritten,
    number_in,
    read_when_overwritten,
    stored_directly,
    stored_with,
    under_reshapes,
)

_NAME = re.compile(r"\b[vijm]\d+\b")
_LIMITS = frozenset({"maximum", "minimum"})
"""What NumPy computes slowly with a number."""
_SCATTERED = frozenset({"transpose", "slice", "broadcast", "window"})
"""Whose elements may not lie in order."""
_VIEWS = frozenset({"input", "number", "stop", "transpose", "slice", "broadcast"})
"""What array calls make without new memory."""
_READER_MAKES = frozenset({"window", "put", "unwindow"})
"""What may be made where it is read."""


class ArrayWriter:
    """The lines of a function, one a tensor; :data:`ARRAY_CALLS` says what each primitive is."""

    def __init__(self, users: Mapping[Tensor, Sequence[Tensor | None]], buffers: Buffers | None) -> None:
        self.users, self.buffers = users, buffers
        self.lines: list[str] = []
        self.parts: dict[str, str] = {}
        self.names: dict[Tensor, str] = {}
        self.numbers: dict[tuple[str, str], int] = {}
        self.kept: list[tuple[Number, str]] = []
        self.operands: list[tuple[str, int]] = []
        self.writing: tuple[Tensor, str] | None = None
        self.constant_lines = 0, 0
        self.constant: Mapping[Tensor, None] = {}
        self.ready: dict[Tensor, str] = {}
        self.targets: dict[str, str] = {}
        self.made: list[Tensor] = []

    def into(self, x: Tensor) -> str:
        """The array that is to hold a tensor, for a function that may write there."""
        return f", {self.writing[1]}" if self.writing is not None and self.writing[0] is x else ""

    def number(self, value: Number, dtype: str = "") -> str:
        """A number of the call, as text."""
        if value.op == "const" and not dtype:
            return repr(int(value.value))
        key = (value.key, dtype)
        if key not in self.numbers:
            self.numbers[key] = len(self.kept)
            self.kept.append((value, dtype))
        return f"N[{self.numbers[key]}]"

    def sizes(self, values: Sequence[Number | int]) -> str:
        return "(" + "".join(f"{self.number(as_number(v))}, " for v in values) + ")"

    def write(self, x: Tensor) -> None:
        text = ARRAY_CALLS[x.op](self, x)
        if text.isidentifier():  # None, too: what is written where it is used
            self.names[x] = text
        else:
            name = self.names[x] = f"v{len(self.names)}"
            self.lines.append(f"{name} = {text}")
            if self._is_new(x):
                self.made.append(x)
            if (
                self.buffers is not None and x.op == "map" and x.dims and has_all_dims(x)
            ):  # of no dims NumPy gives no array
                self.buffers.made(x, name)

    def _is_new(self, x: Tensor) -> bool:
        """Whether a tensor that has been written is in memory, its own or what lay free: it is no operand's."""
        if x.op == "reshape":  # of what does not lie in order
            return under_reshapes(x)[-1].op in _SCATTERED
        if x.op == "window":
            return any(user is not None and user.op == "map" for user in self.users.get(x, ()))
        return x.op not in _VIEWS

    def constants(self, order: Sequence[Tensor], constant: Mapping[Tensor, None]) -> None:
        """Write what is computed of numbers alone, in memory of its own."""
        self.constant, begin = constant, len(self.lines)
        self.buffers, buffers = None, self.buffers
        for x in constant:
            self.write(x)
        self.buffers = buffers
        for k, x in enumerate(order):
            if x not in constant and x.op in ("take", "pick") and x.args[1] in constant and x.params[1] != "check":
                self.lines.append(f"i{k}, j{k} = {self._indices(x).removeprefix('*')}")
                self.ready[x] = f"i{k}, j{k}"
            elif x not in constant and self._has_known_matrix(x):
                self.lines.append(f"m{k} = []")
                self.ready[x] = f"m{k}"
        self.constant_lines = begin, len(self.lines)

    def body(self) -> list[str]:
        """Return all lines; what others read of constants is kept for the next calls."""
        begin, end = self.constant_lines
        made, before, others = self.lines[begin:end], self.lines[:begin], self.lines[end:]
        names = [name for line in made for name in _NAME.findall(line.partition(" = ")[0])]
        read = set(_NAME.findall("\n".join(others)))
        kept = "".join(f"{name}, " for name in names if name in read)
        if not kept:
            return [*before, *others]
        once = [*made, f"H.keep(xp, K, ({kept}))"]
        return [*before, "if K:", f"    {kept}= K", "else:", *(f"    {line}" for line in once), *others]

    def _has_known_matrix(self, x: Tensor) -> bool:
        """Whether indices that multiply, or that add up a product, and their factor are computed of numbers alone."""
        if x.op == "contract":
            at = gathered_factor(x, self.users)
            return at is not None and x.args[at].args[1] in self.constant and x.args[1 - at] in self.constant
        return x.op == "add_at" and x.args[1] in self.constant and made_by_reader(x.args[0], self.users) and (
            not self.constant.keys().isdisjoint(x.args[0].args)
        )  # fmt: skip

    def _known(self, x: Tensor) -> str:
        """The list of the matrix that all calls have."""
        return f", known={self.ready[x]}" if x in self.ready else ""

    def store(self, x: Tensor, target: str, direct: set[Tensor]) -> None:
        """Write a tensor where it is to be; those of ``direct`` have no value of their own."""
        if x not in direct:
            self.lines.append(f"H.store(xp, {target}, {self.value(x)})")
        elif (every := number_in(x)) is not None:
            self.lines.append(f"{target}[...] = {self.number(every.params[0], every.dtype)}")
        elif x.op == "pad":
            self.lines.append(f"H.pad_into(xp, {target}, {self._padding(x)})")
        elif x.op == "map" or x.op in WRITING:
            self.writing = x, target
            self.lines.append(f"H.store(xp, {target}, {ARRAY_CALLS[x.op](self, x)})")
        elif x.op == "reshape":
            self.store(x.args[0], self._part(f"H.view(xp, {target}, {self.sizes(x.args[0].dims)})"), direct)
        else:
            (axis,), at = x.params, as_number(0)
            for arg in x.args:
                size = arg.dims[axis]
                where = f"H.part({target}, {axis}, {self.number(at)}, {self.number(size)})"
                self.store(arg, self._part(where), direct)
                at = at + size

    def copy(self, tensors: Sequence[Tensor]) -> None:
        """Copy what is to be stored after its memory has been written."""
        for x in tensors:
            source, name = self.value(x), f"c{len(self.lines)}"
            self.lines.append(f"{name} = xp.astype({source}, {source}.dtype)")
            self.names[x] = name

    def lend(self, x: Tensor, target: str, direct: Collection[Tensor]) -> None:
        """Compute tensors in the memory of a result before that is there."""
        *views, made = under_reshapes(x)
        begun = made
        if made.op in ("put", "add_at") and len(made.args) == 3 and made in direct:  # what is added to
            begun = made.args[2]
            if len(self.users[begun]) > 1:
                return
        if self.buffers is None or not stored_at_once(begun) or (views and made not in direct):
            return
        for each in (*views[1:], made) if views else ():
            target = self._part(f"H.view(xp, {target}, {self.sizes(each.dims)})")
        self.targets[target] = f"t{target}"
        self.lines.append(f"t{target} = {self.target(target, made)}")
        self.buffers.lend(begun, f"t{target}", begun in direct)

    @staticmethod
    def target(array: str, x: Tensor) -> str:
        return f"H.target({array}, {x.dtype!r})"

    def _part(self, text: str) -> str:
        if text not in self.parts:
            self.parts[text] = f"p{len(self.parts) + 1}"
            self.lines.append(f"{self.parts[text]} = {text}")
        return self.parts[text]

    def _input(self, x: Tensor) -> str:
        self.operands.append(x.params)
        return f"a{len(self.operands) - 1}"

    def _number(self, x: Tensor) -> str:
        return "None"  # written where it is used

    def operand(self, x: Tensor, of: Tensor, beside: str) -> str:
        """An operand of a scalar primitive; a number is an array where no other operand is one."""
        if unspread(x, of).op != "number":
            return self._reached(x, of)
        x = unspread(x, of)
        text = self.number(x.params[0], x.dtype)
        if self.buffers is not None and any(each.op != "number" and each.dtype == x.dtype for each in of.args):
            return text  # NumPy takes it as one of the array's dtype
        return f"H.as_number(xp, {text}, {beside}, {x.dtype!r})"

    def _map(self, x: Tensor) -> str:
        if in_sum(x, self.users):
            return "None"  # multiplied where it is summed
        if (joined := self._joined(x)) is not None:
            return joined
        called, arrays = called_function(x), [arg for arg in x.args if arg.op != "number"]
        beside, own = self._reached(arrays[0], x), called.startswith("@")
        given = [
            f"H.as_number(xp, {self.number(arg.params[0], arg.dtype)}, {beside}, {arg.dtype!r})"
            if own and arg.op == "number" else self.operand(arg, x, beside)
            for arg in x.args
        ]  # fmt: skip
        if takes_array(x, called) and self.buffers is not None:
            given += self._memory(x, given)
        taken = ", ".join(given)
        if self.buffers is not None and called == "sign" and x.dtype in FLOATS:
            text = f"H.sign(xp, {taken})"
        elif called == "where":
            text = f"H.where(context, {taken})"
        elif self.buffers is not None and called in _LIMITS and x.dtype in FLOATS and len(arrays) == 1:
            side, limit = given[:2] if x.args[1].op == "number" else given[1::-1]
            text = f"H.limit(xp, {called!r}, {', '.join([side, limit, *given[2:]])})"
        else:
            text = f"F.{called[1:]}(xp, {taken})" if own else f"xp.{called}({taken})"
        return text if has_all_dims(x) else f"H.broadcast(xp, {text}, {self.sizes(x.dims)})"

    def _memory(self, x: Tensor, given: Sequence[str]) -> list[str]:
        """The argument that says where NumPy writes an elementwise tensor, if there is a place for it."""
        into = self.into(x)[2:]
        target = self.targets.get(into) or self.target(into, x) if into else None
        if not into and self.buffers is not None:
            target = self.buffers.take(x, given)
        return [f"out={target}"] if target else []

    def _joined(self, x: Tensor) -> str | None:
        """An elementwise tensor that makes its operands itself; None: they are there."""
        kind, part = others_joined(x, self.users), added_padding(x, self.users)
        if kind is not None:
            (scan, _) = x.args
            given = [repr(kind), self.value(scan.args[0]), str(scan.params[1])]
            return f"H.others(xp, {', '.join([*given, *self._memory(x, ())])})"
        if part is None:
            return None
        whole = self.names[x.args[1] if x.args[0] is part else x.args[0]]
        low, high, between = map(self.sizes, part.params)
        given = [whole, self.value(part.args[0]), low, high, between]
        return f"H.add_part(xp, {', '.join([*given, *self._memory(x, (whole,))])})"

    def _reached(self, arg: Tensor, x: Tensor) -> str:
        """The array of an operand, that may be broadcast by whoever reads it."""
        name = self.names[arg]
        return self.names[unspread(arg, x)] if name == "None" else name

    def _cast(self, x: Tensor) -> str:
        if x.args[0].op == "arg" and index_dtype(x.args[0], self.users) == x.dtype:
            return self.value(x.args[0])
        return f"H.cast(xp, {self.value(x.args[0])}, {x.dtype!r})"

    def _stop(self, x: Tensor) -> str:
        return self.value(x.args[0])

    def _reshape(self, x: Tensor) -> str:
        (arg,) = x.args
        text = self.value(arg)
        return f"xp.reshape({text}, {self.sizes(x.dims)})"

    def value(self, x: Tensor) -> str:
        """A tensor as an array, numbers too."""
        if x.op != "number":
            return self.names[x]
        like = "a0" if self.operands else "out0"
        return f"H.full(xp, (), {self.number(x.params[0], x.dtype)}, {x.dtype!r}, {like})"

    def _transpose(self, x: Tensor) -> str:
        return f"H.permute(xp, {self.value(x.args[0])}, {x.params[0]})"

    def _broadcast(self, x: Tensor) -> str:
        users = self.users.get(x, ())
        if users and all(user is not None and user.op == "map" and user.rank == x.rank for user in users):
            if self.buffers is not None and x.rank > 2 and x.rank - 1 in x.params[0] and x.args[0].op != "number":
                return f"H.broadcast_last_axes({self.names[x.args[0]]}, {self.sizes(x.dims)})"
            return "None"  # array functions broadcast themselves
        return f"H.broadcast(xp, {self.value(x.args[0])}, {self.sizes(x.dims)})"

    def _slice(self, x: Tensor) -> str:
        starts, steps = x.params
        return f"H.slices(xp, {self.value(x.args[0])}, {self.sizes(starts)}, {self.sizes(x.dims)}, {self.sizes(steps)})"

    def _pad(self, x: Tensor) -> str:
        if made_by_reader(x, self.users):
            return "None"  # added where it lies
        return f"H.pad(xp, {self._padding(x)})"

    def _padding(self, x: Tensor) -> str:
        (arg, filler), (low, high, between) = x.args, x.params
        number = self.number(filler.params[0], filler.dtype) if filler.op == "number" else self.names[filler]
        return f"{self.value(arg)}, {number}, {self.sizes(low)}, {self.sizes(high)}, {self.sizes(between)}"

    def _concat(self, x: Tensor) -> str:
        return f"H.concat(xp, [{', '.join(self.value(arg) for arg in x.args)}], {x.params[0]})"

    def _iota(self, x: Tensor) -> str:
        like = "a0" if self.operands else "out0"
        return f"H.iota(xp, {self.sizes(x.dims)}, {x.params[0]}, {x.dtype!r}, {like})"

    def _offsets(self, x: Tensor) -> str:
        like = "a0" if self.operands else "out0"
        return f"H.as_number(xp, {self.number(x.params[2])}, {like}, 'int64')"

    def _window(self, x: Tensor) -> str:
        users = self.users.get(x, ())
        if users and all(reduces_windows(user) for user in users):
            return "None"  # reduced where it lies
        called = "window" if any(user is not None and user.op == "map" for user in users) else "window_view"
        return f"H.{called}(xp, {self.value(x.args[0])}, {self._windows(x)})"

    def _windows(self, x: Tensor) -> str:
        axis, stride, dilation = x.params
        return f"{axis}, {self.number(x.dims[axis + 1])}, {self.number(x.dims[axis])}, {stride}, {dilation}"

    def _unwindow(self, x: Tensor) -> str:
        axis, stride, dilation = x.params
        (parts,) = x.args
        if unwindows_one(x):
            given = ", ".join(self.value(arg) for arg in parts.args)
            sizes = f"{self.number(parts.dims[axis + 1])}, {self.number(x.dims[axis])}"
            return f"H.unwindow_one(context, {given}, {axis}, {sizes}, {stride}, {dilation}{self.into(x)})"
        users = self.users.get(x, ())
        if len(users) == 1 and users[0] is not None and adds_on(users[0], self.users):
            return "None"  # added up with those in front of them
        several, into = [f"({axis}, {self.number(x.dims[axis])}, {stride}, {dilation}), "], self.into(x)
        while adds_on(x, self.users):
            (x,) = x.args
            (parts,), (axis, stride, dilation) = x.args, x.params
            several.append(f"({axis}, {self.number(x.dims[axis])}, {stride}, {dilation}), ")
        return f"H.unwindow(xp, {self.value(parts)}, ({''.join(several)}){into})"

    def _reduce(self, x: Tensor) -> str:
        kind, axes = x.params
        if reduces_windows(x):
            (windows,) = x.args
            source = self.value(windows.args[0])
            return f"H.window_reduce(xp, {kind!r}, {source}, {self._windows(windows)}, {x.dtype!r})"
        (arg,) = x.args
        if in_sum(arg, self.users):
            a, b = (self._reached(each, arg) for each in arg.args)
            return f"H.product_sum(xp, {a}, {b}, {axes}, {x.dtype!r})"
        return f"H.reduce(xp, {kind!r}, {self.value(arg)}, {axes}, {x.dtype!r})"

    def _arg(self, x: Tensor) -> str:
        kind, axis = x.params
        if reduces_windows(x):
            (windows,) = x.args
            source, dtype = self.value(windows.args[0]), index_dtype(x, self.users)
            return f"H.window_arg(xp, {kind!r}, {source}, {self._windows(windows)}, {dtype!r})"
        return f"H.arg(xp, {kind!r}, {self.value(x.args[0])}, {axis}, {index_dtype(x, self.users)!r})"

    def _scan(self, x: Tensor) -> str:
        if made_by_reader(x, self.users):
            return "None"  # joined with the one from the other end
        kind, axis, reverse, exclusive = x.params
        return f"H.scan(xp, {kind!r}, {self.value(x.args[0])}, {axis}, {reverse}, {exclusive}{self.into(x)})"

    def _recur(self, x: Tensor) -> str:
        a, b = (self.value(arg) for arg in x.args)
        return f"H.recur(xp, {a}, {b}, {x.params[0]}, {x.params[1]})"

    def _segment(self, x: Tensor) -> str:
        return f"H.segment(xp, {x.params[0]!r}, {self.value(x.args[0])}, {self.value(x.args[1])})"

    def _segment_of(self, x: Tensor) -> str:
        return f"H.segment_of(xp, {self.value(x.args[0])}, {self.number(x.dims[0])})"

    def _indices(self, x: Tensor) -> str:
        """Indices that can be read, and which of them were out of range (None: none of them counts)."""
        if x in self.ready:
            return self.ready[x]
        (axis, *mode), index = x.params, x.args[-1]
        size = x.args[0].dims[axis]
        if in_range(index, size):
            return f"{self.value(index)}, None"
        return f"*H.checked(context, {self.value(index)}, {self.number(size)}, {(mode or ['check'])[0]!r}, io)"

    def _take(self, x: Tensor) -> str:
        if made_by_reader(x, self.users):
            return "None"  # made where it is multiplied
        return f"H.take(xp, {self.value(x.args[0])}, {self._indices(x)}, {x.params[0]}{self.into(x)})"

    def _pick(self, x: Tensor) -> str:
        if reduces_windows(x):
            (windows, _) = x.args
            given = f"{self.value(windows.args[0])}, {self._indices(x)}, {self._windows(windows)}"
            return f"H.window_pick(context, {given})"
        return f"H.pick(xp, {self.value(x.args[0])}, {self._indices(x)}, {x.params[0]}{self.into(x)})"

    def _checked(self, x: Tensor) -> str:
        return f"H.checked(context, {self.value(x.args[0])}, {self.number(x.params[0])}, 'check', io)[0]"

    def _add_at(self, x: Tensor) -> str:
        (axis,), (updates, index, *base), bound = x.params, map(self.value, x.args), x.dims[x.params[0]]
        known = in_range(x.args[1], bound)
        begin = base[0] if base else None
        product = x.args[0]
        if made_by_reader(product, self.users):
            (mine, theirs, out), args = product.params, product.args
            if args[1] not in self.constant:  # the factor that is the same in all calls comes second
                mine, theirs, args = theirs, mine, args[::-1]
            a, b = map(self.value, args)
            letters = ", ".join(map(repr, (mine, theirs, out)))
            where = f"{index}, {axis}, {self.number(bound)}, {begin}, {known}{self.into(x)}{self._known(x)}"
            return f"H.add_contract(context, {a}, {b}, {letters}, {where})"
        return f"H.add_at(context, {updates}, {index}, {axis}, {self.number(bound)}, {begin}, {known}{self.into(x)})"

    def _set_at(self, x: Tensor) -> str:
        (axis,), (source, updates, _) = x.params, map(self.value, x.args)
        return f"H.set_at(context, {source}, {updates}, {self._indices(x)}, {axis}{self.into(x)})"

    def _put(self, x: Tensor) -> str:
        if self.users.get(x) and all(map(unwindows_one, self.users[x])):
            return "None"  # put where windows are added up
        (axis,), (updates, index, *base), bound = x.params, map(self.value, x.args), x.dims[x.params[0]]
        known, begin = in_range(x.args[1], bound), base[0] if base else None
        return f"H.put(context, {updates}, {index}, {axis}, {self.number(bound)}, {begin}, {known}{self.into(x)})"

    def _contract(self, x: Tensor) -> str:
        if made_by_reader(x, self.users):
            return "None"  # multiplied where it is added
        mine, theirs, out = x.params
        at = gathered_factor(x, self.users)
        if at is not None:
            taken, other = x.args[at], self.value(x.args[1 - at])
            source = f"{self.value(taken.args[0])}, {self._indices(taken)}, {taken.params[0]}"
            letters = (mine, theirs, out) if at == 0 else (theirs, mine, out)
            said = ", ".join(map(repr, letters))
            return f"H.take_contract(xp, {source}, {other}, {said}{self.into(x)}{self._known(x)})"
        a, b = (self.value(arg) for arg in x.args)
        return f"H.contract(xp, {a}, {b}, {x.params[0]!r}, {x.params[1]!r}, {x.params[2]!r}{self.into(x)})"


ARRAY_CALLS: dict[str, Callable[[ArrayWriter, Tensor], str]] = {
    "input": ArrayWriter._input,
    "number": ArrayWriter._number,
    "map": ArrayWriter._map,
    "cast": ArrayWriter._cast,
    "stop": ArrayWriter._stop,
    "reshape": ArrayWriter._reshape,
    "transpose": ArrayWriter._transpose,
    "broadcast": ArrayWriter._broadcast,
    "slice": ArrayWriter._slice,
    "pad": ArrayWriter._pad,
    "concat": ArrayWriter._concat,
    "iota": ArrayWriter._iota,
    "offsets": ArrayWriter._offsets,
    "window": ArrayWriter._window,
    "unwindow": ArrayWriter._unwindow,
    "reduce": ArrayWriter._reduce,
    "arg": ArrayWriter._arg,
    "scan": ArrayWriter._scan,
    "recur": ArrayWriter._recur,
    "segment": ArrayWriter._segment,
    "segment_of": ArrayWriter._segment_of,
    "take": ArrayWriter._take,
    "pick": ArrayWriter._pick,
    "checked": ArrayWriter._checked,
    "add_at": ArrayWriter._add_at,
    "set_at": ArrayWriter._set_at,
    "put": ArrayWriter._put,
    "contract": ArrayWriter._contract,
}
"""By primitive: the text of its value, of the names of its operands; "None" where its reader writes it."""


def array_code(
    traced: Traced, slots: Sequence[str] | None = None, host: bool = False, shared: Mapping[str, str] | None = None
) -> ArrayCode:
    """The array calls that compute the outputs of the slots (None: all).

    ``host``: on NumPy. ``shared``: for output slots the input slot whose memory they may have.

    Half types are stored only: what is computed of them is float32, and rounded by whoever stores it.
    """
    shared = shared or {}
    wanted = [(slot, i, x) for slot, found in traced.outputs.items() if slots is None or slot in slots
              for i, x in enumerate(found)]  # fmt: skip
    wanted.sort(key=lambda each: each[0] in shared)  # what is in an operand's memory is written last
    order = ordered([x for _, _, x in wanted])
    users: dict[Tensor, list[Tensor | None]] = {}
    for _, _, x in wanted:
        users.setdefault(x, []).append(None)
    for x in order:
        for arg in x.args:
            users.setdefault(arg, []).append(x)
    results = [x for _, _, x in wanted]
    direct = stored_directly(results, users, WRITING)
    if host:
        direct |= maps_stored_at_once(results, users)
    within = {x for x in order if in_sum(x, users) or made_by_reader(x, users)}
    direct = not_overwritten(wanted, direct, within, shared)
    first = [x for x in order if x.op in ("input", "number")]  # before counts, which are made where operands are
    constant = _constants(order, direct, users)
    order = [*first, *constant, *(x for x in order if x.op not in ("input", "number") and x not in constant)]
    writer = ArrayWriter(users, Buffers(order, users, results, stored_with(results, direct), within) if host else None)
    for k, (slot, _, x) in enumerate(wanted):
        if slot not in shared:
            writer.lend(x, f"out{k}", direct)
    for x in first:
        writer.write(x)
    writer.constants(order, constant)
    for x in order:
        if x not in direct and x not in writer.names:
            writer.write(x)
    writer.copy(read_when_overwritten(wanted, direct, shared))
    for k, x in enumerate(results):
        writer.store(x, f"out{k}", direct)
    arguments = ", ".join(["xp", "F", "H", "context", "io", "N", "K", *array_names(writer.operands, wanted)])
    body = "".join(f"    {line}\n" for line in writer.body())
    outputs = tuple((slot, i) for slot, i, _ in wanted)
    made = (*writer.made, *(x for x in within if x.op == "map" and not summed_in_runs(x, users)))
    return ArrayCode(f"def compute({arguments}):\n{body}", tuple(writer.operands), tuple(writer.kept), outputs, made)


def _constants(
    order: Sequence[Tensor], direct: set[Tensor], users: Mapping[Tensor, Sequence[Tensor | None]]
) -> dict[Tensor, None]:
    """What is computed of sizes and numbers alone, and raises no error."""
    found: dict[Tensor, None] = {}
    for x in order:
        arrays = [arg for arg in x.args if arg.op != "number"]
        begins = x.op in ("iota", "broadcast", "offsets") and not arrays
        other = x in direct or x.op in _READER_MAKES or made_by_reader(x, users)
        raises = x.op in ("input", "number", "checked", "set_at")
        raises = raises or (x.op in ("take", "pick") and x.params[1] == "check")
        if not raises and not other and (begins or arrays) and all(arg in found for arg in arrays):
            found[x] = None
    return found
