"""The array call of each tensor primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fluidlite.expr.indexing import in_range
from fluidlite.expr.primitives import TENSOR_PRIMITIVES
from fluidlite.expr.step_order import order_table_kind
from fluidlite.expr.tensor import Tensor
from fluidlite.render.array_text import ArrayText
from fluidlite.render.readers import (
    called_function,
    covers_all_dims,
    gathered_factor,
    has_out_argument,
    is_computed_by_reader,
    is_fused_into_sum,
    is_sparse_unwindow,
    reduces_windows,
    without_broadcast,
)


class ArrayCalls(ArrayText):
    """Writes the array call of each primitive; :data:`ARRAY_CALLS` is the table of its methods."""

    def _input(self, x: Tensor) -> str:
        self.operands.append(x.params)
        return f"a{len(self.operands) - 1}"

    def _number(self, x: Tensor) -> str:
        return "None"  # written where it is used

    def operand(self, x: Tensor, reader: Tensor, sibling: str) -> str:
        """An operand of a scalar primitive; a number is converted to an array unless NumPy accepts it as it is."""
        if without_broadcast(x, reader).op != "number":
            return self._broadcastable(x, reader)
        x = without_broadcast(x, reader)
        text = self.number(x.params[0], x.dtype)
        if self.buffers is not None and any(each.op != "number" and each.dtype == x.dtype for each in reader.args):
            return text  # NumPy takes it as one of the array's dtype
        return f"H.as_number(xp, {text}, {sibling}, {x.dtype!r})"

    def _map(self, x: Tensor) -> str:
        if is_fused_into_sum(x, self.users):
            return "None"  # fused into the sum
        has_full_dims = self.has_full_dims[x] = covers_all_dims(x)
        function, arrays = called_function(x), [arg for arg in x.args if arg.op != "number"]
        sibling, is_own = self._broadcastable(arrays[0], x), function.startswith("@")
        arguments = [
            f"H.as_number(xp, {self.number(arg.params[0], arg.dtype)}, {sibling}, {arg.dtype!r})"
            if is_own and arg.op == "number"
            else self.operand(arg, x, sibling)
            for arg in x.args
        ]
        if has_full_dims and self.buffers is not None and has_out_argument(function):
            arguments += self._memory(x, arguments)
        argument_text = ", ".join(arguments)
        if function == "where":
            text = f"H.where(context, {argument_text})"
        else:
            text = f"F.{function[1:]}(xp, {argument_text})" if is_own else f"xp.{function}({argument_text})"
        return text if has_full_dims else f"H.broadcast(xp, {text}, {self.sizes(x.dims)})"

    def _memory(self, x: Tensor, names: Sequence[str]) -> list[str]:
        """The ``out`` argument of NumPy for an elementwise tensor, if an array is free."""
        output = self.into(x)[2:]
        target = self.targets.get(output) or self.target(output, x) if output else None
        if not output and self.buffers is not None:
            target = self.buffers.take(x, names)
        return [f"out={target}"] if target else []

    def _cast(self, x: Tensor) -> str:
        return f"H.cast(xp, {self.value(x.args[0])}, {x.dtype!r})"

    def _stop(self, x: Tensor) -> str:
        return self.value(x.args[0])

    def _reshape(self, x: Tensor) -> str:
        (arg,) = x.args
        text = self.value(arg)
        return f"xp.reshape({text}, {self.sizes(x.dims)})"

    def _transpose(self, x: Tensor) -> str:
        return f"H.permute(xp, {self.value(x.args[0])}, {x.params[0]})"

    def _broadcast(self, x: Tensor) -> str:
        users = self.users.get(x, ())
        if users and all([user is not None and user.op == "map" and len(user.dims) == len(x.dims) for user in users]):
            return "None"  # array functions broadcast implicitly
        return f"H.broadcast(xp, {self.value(x.args[0])}, {self.sizes(x.dims)})"

    def _slice(self, x: Tensor) -> str:
        starts, steps = x.params
        return f"H.slices(xp, {self.value(x.args[0])}, {self.sizes(starts)}, {self.sizes(x.dims)}, {self.sizes(steps)})"

    def _pad(self, x: Tensor) -> str:
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
            return "None"  # fused into the reduction
        function = "window" if any(user is not None and user.op == "map" for user in users) else "window_view"
        return f"H.{function}(xp, {self.value(x.args[0])}, {self._windows(x)})"

    def _windows(self, x: Tensor) -> str:
        axis, stride, dilation = x.params
        return f"{axis}, {self.number(x.dims[axis + 1])}, {self.number(x.dims[axis])}, {stride}, {dilation}"

    def _unwindow(self, x: Tensor) -> str:
        axis, stride, dilation = x.params
        (parts,) = x.args
        if is_sparse_unwindow(x):
            arguments = ", ".join(self.value(arg) for arg in parts.args)
            sizes = f"{self.number(parts.dims[axis + 1])}, {self.number(x.dims[axis])}"
            return f"H.unwindow_one(context, {arguments}, {axis}, {sizes}, {stride}, {dilation}{self.into(x)})"
        geometry = f"{axis}, {self.number(x.dims[axis])}, {stride}, {dilation}"
        return f"H.unwindow(xp, {self.value(parts)}, {geometry}{self.into(x)})"

    def _reduce(self, x: Tensor) -> str:
        kind, axes = x.params
        if reduces_windows(x):
            (windows,) = x.args
            source = self.value(windows.args[0])
            return f"H.window_reduce(xp, {kind!r}, {source}, {self._windows(windows)}, {x.dtype!r})"
        (arg,) = x.args
        if is_fused_into_sum(arg, self.users):
            a, b = (self._broadcastable(each, arg) for each in arg.args)
            return f"H.product_sum(xp, {a}, {b}, {axes}, {x.dtype!r})"
        return f"H.reduce(xp, {kind!r}, {self.value(arg)}, {axes}, {x.dtype!r})"

    def _arg(self, x: Tensor) -> str:
        kind, axis = x.params
        if reduces_windows(x):
            (windows,) = x.args
            return f"H.window_arg(xp, {kind!r}, {self.value(windows.args[0])}, {self._windows(windows)})"
        return f"H.arg(xp, {kind!r}, {self.value(x.args[0])}, {axis})"

    def _scan(self, x: Tensor) -> str:
        kind, axis, reverse, exclusive = x.params
        return f"H.scan(xp, {kind!r}, {self.value(x.args[0])}, {axis}, {reverse}, {exclusive}{self.into(x)})"

    def _recur(self, x: Tensor) -> str:
        a, b = (self.value(arg) for arg in x.args)
        return f"H.recur(xp, {a}, {b}, {x.params[0]}, {x.params[1]})"

    def _segment(self, x: Tensor) -> str:
        return f"H.segment(xp, {x.params[0]!r}, {self.value(x.args[0])}, {self.value(x.args[1])})"

    def _segment_of(self, x: Tensor) -> str:
        return f"H.segment_of(xp, {self.value(x.args[0])}, {self.number(x.dims[0])})"

    def _table(self, kind: str, flag: bool, offsets: Tensor) -> str:
        """The table of rows by step of a recurrence, computed from the offsets of a LoD."""
        like = "a0" if self.operands else "out0"
        values = f"H.step_table({kind!r}, {flag}, {self.number(offsets.params[2])})"
        return f"H.as_number(xp, {values}, {like}, 'int64')"

    def _step_table(self, x: Tensor) -> str:
        return self._table(x.params[0], x.params[1], x.args[0])

    def _arrange(self, x: Tensor) -> str:
        kind, inverse, reverse = x.params
        table = self._table(order_table_kind(kind, inverse), reverse, x.args[1])
        return f"H.take(xp, {self.value(x.args[0])}, {table}, None, 0)"

    def _indices(self, x: Tensor) -> str:
        """Indices made safe to read, and a mask of those in range (None: all)."""
        if x in self.safe_indices:
            return self.safe_indices[x]
        (axis, *mode), index = x.params, x.args[-1]
        size = x.args[0].dims[axis]
        if in_range(index, size):
            return f"{self.value(index)}, None"
        return f"*H.checked(context, {self.value(index)}, {self.number(size)}, {(mode or ['check'])[0]!r}, io)"

    def _take(self, x: Tensor) -> str:
        if is_computed_by_reader(x, self.users):
            return "None"  # fused into the contraction
        return f"H.take(xp, {self.value(x.args[0])}, {self._indices(x)}, {x.params[0]}{self.into(x)})"

    def _pick(self, x: Tensor) -> str:
        return f"H.pick(xp, {self.value(x.args[0])}, {self._indices(x)}, {x.params[0]}{self.into(x)})"

    def _checked(self, x: Tensor) -> str:
        return f"H.checked(context, {self.value(x.args[0])}, {self.number(x.params[0])}, 'check', io)[0]"

    def _add_at(self, x: Tensor) -> str:
        (axis,), (updates, index, *base), bound = x.params, map(self.value, x.args), x.dims[x.params[0]]
        safe = in_range(x.args[1], bound)
        begin = base[0] if base else None
        product = x.args[0]
        if is_computed_by_reader(product, self.users):
            a, b = map(self.value, product.args)
            letters = ", ".join(map(repr, product.params))
            location = f"{index}, {axis}, {self.number(bound)}, {begin}, {safe}{self.into(x)}"
            return f"H.add_contract(context, {a}, {b}, {letters}, {location})"
        return f"H.add_at(context, {updates}, {index}, {axis}, {self.number(bound)}, {begin}, {safe}{self.into(x)})"

    def _set_at(self, x: Tensor) -> str:
        (axis,), (source, updates, _) = x.params, map(self.value, x.args)
        return f"H.set_at(context, {source}, {updates}, {self._indices(x)}, {axis}{self.into(x)})"

    def _put(self, x: Tensor) -> str:
        if self.users.get(x) and all(map(is_sparse_unwindow, self.users[x])):
            return "None"  # fused into unwindow
        (axis,), (updates, index, *base), bound = x.params, map(self.value, x.args), x.dims[x.params[0]]
        is_in_range, begin = in_range(x.args[1], bound), base[0] if base else None
        return f"H.put(context, {updates}, {index}, {axis}, {self.number(bound)}, {begin}, {is_in_range}{self.into(x)})"

    def _contract(self, x: Tensor) -> str:
        if is_computed_by_reader(x, self.users):
            return "None"  # fused into the scatter
        a_letters, b_letters, out = x.params
        number = gathered_factor(x, self.users)
        if number is not None:
            gather, other = x.args[number], self.value(x.args[1 - number])
            source = f"{self.value(gather.args[0])}, {self._indices(gather)}, {gather.params[0]}"
            letters = (a_letters, b_letters, out) if number == 0 else (b_letters, a_letters, out)
            letters_text = ", ".join(map(repr, letters))
            return f"H.take_contract(xp, {source}, {other}, {letters_text}{self.into(x)})"
        a, b = (self.value(arg) for arg in x.args)
        return f"H.contract(xp, {a}, {b}, {x.params[0]!r}, {x.params[1]!r}, {x.params[2]!r}{self.into(x)})"


ARRAY_CALLS: dict[str, Callable[[ArrayCalls, Tensor], str]] = {
    op: getattr(ArrayCalls, f"_{op}") for op in TENSOR_PRIMITIVES if hasattr(ArrayCalls, f"_{op}")
}
"""By primitive, the function that writes its array call; "None" if the reader computes it."""
