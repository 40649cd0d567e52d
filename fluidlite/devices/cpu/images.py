"""Images: short, relocatable sequences of launches; one call runs many of them in order.

An image encodes the launches of a routine as words. An argument that depends on a register (the address of an input or
of own memory, or the operator number of deferred errors) is encoded as the register and an offset. The operators of a
new graph are therefore linked by writing the addresses of each, and run natively.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Sequence
from typing import Any

from fluidlite.platform.kernel_language import REGION_BIT

MAX_REGISTERS = 256
MAX_ARGUMENTS = 1024
MAX_BYTES = 1 << 16
"""Limit of the bytes of an image's inputs and own memory: several threads would not speed up such small launches."""

RUN_SOURCE = f"""
define void @fl_images(ptr %stream, i64 %words, ptr %bases) nounwind {{
entry:
  %regs = alloca [{MAX_REGISTERS} x i64]
  %args = alloca [{MAX_ARGUMENTS} x i64]
  store i64 0, ptr %regs
  br label %test
test:
  %at = phi i64 [ 0, %entry ], [ %after, %done ]
  %more = icmp slt i64 %at, %words
  br i1 %more, label %begin, label %end
begin:
  %entry_at = getelementptr i64, ptr %stream, i64 %at
  %image = load ptr, ptr %entry_at
  %given = getelementptr i64, ptr %entry_at, i64 1
  %registers = load i64, ptr %image
  %count_at = getelementptr i64, ptr %image, i64 1
  %count = load i64, ptr %count_at
  %launches = getelementptr i64, ptr %image, i64 2
  br label %ins
ins:
  %i = phi i64 [ 0, %begin ], [ %i1, %in ]
  %ins_left = icmp slt i64 %i, %registers
  br i1 %ins_left, label %in, label %launch
in:
  %from = getelementptr i64, ptr %given, i64 %i
  %said = load i64, ptr %from
  %region = lshr i64 %said, {REGION_BIT}
  %offset = and i64 %said, {(1 << REGION_BIT) - 1}
  %base_at = getelementptr i64, ptr %bases, i64 %region
  %base = load i64, ptr %base_at
  %value = add i64 %base, %offset
  %i1 = add i64 %i, 1
  %to = getelementptr i64, ptr %regs, i64 %i1
  store i64 %value, ptr %to
  br label %ins
launch:
  %k = phi i64 [ 0, %ins ], [ %k1, %call ]
  %record_at = phi ptr [ %launches, %ins ], [ %next_launch, %call ]
  %left = icmp slt i64 %k, %count
  br i1 %left, label %pack, label %done
pack:
  %kernel = load ptr, ptr %record_at
  %items_at = getelementptr i64, ptr %record_at, i64 1
  %items = load i64, ptr %items_at
  %nargs_at = getelementptr i64, ptr %record_at, i64 2
  %nargs = load i64, ptr %nargs_at
  %pairs = getelementptr i64, ptr %record_at, i64 3
  br label %arg
arg:
  %a = phi i64 [ 0, %pack ], [ %a1, %one ]
  %args_left = icmp slt i64 %a, %nargs
  br i1 %args_left, label %one, label %call
one:
  %a2 = mul i64 %a, 2
  %reg_at = getelementptr i64, ptr %pairs, i64 %a2
  %reg = load i64, ptr %reg_at
  %add_at = getelementptr i64, ptr %reg_at, i64 1
  %add = load i64, ptr %add_at
  %reg_from = getelementptr i64, ptr %regs, i64 %reg
  %reg_value = load i64, ptr %reg_from
  %word = add i64 %reg_value, %add
  %arg_to = getelementptr i64, ptr %args, i64 %a
  store i64 %word, ptr %arg_to
  %a1 = add i64 %a, 1
  br label %arg
call:
  call void %kernel(i64 0, i64 %items, ptr %args)
  %k1 = add i64 %k, 1
  %skip = mul i64 %nargs, 2
  %next_launch = getelementptr i64, ptr %pairs, i64 %skip
  br label %launch
done:
  %used = add i64 %registers, 1
  %after = add i64 %at, %used
  br label %test
end:
  ret void
}}
"""
"""LLVM IR. The stream holds for each image its address and its registers: each an offset from one of the bases."""


class Image:
    """Launches whose addresses are provided when they run."""

    def __init__(self, words: Sequence[int], kernels: Sequence[Any]) -> None:
        self._words = array("q", words)
        self._kernels = kernels  # keeps their code alive
        self.address: int = self._words.buffer_info()[0]


def image(
    recordings: Sequence[Sequence[Any]], memory: Sequence[tuple[int, int, int, int, int]], registers: int
) -> Image | None:
    """Return the image of launches recorded twice at different addresses: words that differ depend on a register.

    ``recordings``: two, each a list of (kernel, items, args, group).
    ``memory``: (register, offset, start, start, nbytes): a range at an offset from the value of a register, with its
    start in either recording.
    ``registers``: the number of registers, numbered from 1.
    Returns None if the memory is too large for one thread, or a word cannot be attributed to a register.
    """
    first, second = recordings
    if len(first) != len(second) or registers >= MAX_REGISTERS or sum([nbytes for *_, nbytes in memory]) > MAX_BYTES:
        return None
    if any([x == y for _, _, x, y, _ in memory]):  # a word that depends on it would look like a constant
        return None
    words: list[int] = [registers, len(first)]
    kernels = []
    for one, other in zip(first, second, strict=True):
        kernel, items, args, _ = one
        if kernel is not other[0] or items != other[1]:
            return None
        texts = kernel.packed(args), kernel.packed(other[2])
        count = len(texts[0]) // 8
        if count > MAX_ARGUMENTS:
            return None
        words += [kernel.address, items, count]
        for a, b in zip(*(struct.unpack(f"<{count}q", text) for text in texts), strict=True):
            if a == b and not any([0 <= a - x < nbytes or 0 <= a - y < nbytes for _, _, x, y, nbytes in memory]):
                words += [0, a]
                continue
            relocations = [
                (register, offset + a - x)
                for register, offset, x, y, nbytes in memory
                if a - x == b - y and 0 <= a - x <= nbytes
            ]
            if len(relocations) != 1 or relocations[0][0] > registers:
                return None
            words += relocations[0]
        kernels.append(kernel)
    return Image(words, kernels)


def runner(load: Any) -> Any:
    """Return ``run(words, bases)``, which runs the images of a stream; both are arrays of int64."""
    code = load(RUN_SOURCE, ["fl_images"], RUN_SOURCE)
    call = code.function("fl_images", None, ("pointer", "int64", "pointer"), keep_lock=True)
    code.keep()
    pointer = ctypes.c_void_p

    def run(words: array[int], bases: array[int]) -> None:
        where, count = words.buffer_info()
        call(pointer(where), count, pointer(bases.buffer_info()[0]))

    return run
