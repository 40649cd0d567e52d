"""Files of Paddle 1.x, byte by byte, by the format's documentation: the reference for reader and writer.

A protocol buffer is a row of fields: a varint ``number << 3 | kind``, then the value: kind 0 a varint, kind 2 a varint
of a length and so many bytes, kind 5 four bytes. Negative numbers are varints of 64 bits.
"""

from __future__ import annotations

import struct
from typing import Any


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, content: bytes | str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def real(field: int, value: float) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<f", value)


def tensor_desc(dtype: int, dims: list[int]) -> bytes:
    return number(1, dtype) + b"".join(number(2, dim) for dim in dims)


def variable(name: str, dtype: int, dims: list[int], lod_level: int = 0, persistable: bool = False) -> bytes:
    kind = number(1, 7) + block(3, block(1, tensor_desc(dtype, dims)) + number(2, lod_level))
    return block(1, name) + block(2, kind) + number(3, persistable)


def raw_variable(name: str, kind: int) -> bytes:
    return block(1, name) + block(2, number(1, kind)) + number(3, 1)


def attribute(name: str, kind: int, value: Any) -> bytes:
    field = {0: 3, 1: 4, 2: 5, 3: 6, 4: 7, 5: 8, 6: 10, 7: 11, 8: 12, 9: 13, 10: 14, 11: 15}[kind]
    items = value if isinstance(value, list) else [value]
    put = real if kind in (1, 4) else block if kind in (2, 5) else number
    return block(1, name) + number(2, kind) + b"".join(put(field, item) for item in items)


def operator(type: str, inputs: dict[str, list[str]], outputs: dict[str, list[str]], *attributes: bytes) -> bytes:
    def slots(field: int, given: dict[str, list[str]]) -> bytes:
        return b"".join(
            block(field, block(1, slot) + b"".join(block(2, name) for name in names)) for slot, names in given.items()
        )

    return slots(1, inputs) + slots(2, outputs) + block(3, type) + b"".join(block(4, each) for each in attributes)


def program(variables: list[bytes], operators: list[bytes], index: int = 0, parent: int = -1) -> bytes:
    content = number(1, index) + number(2, parent)
    content += b"".join(block(3, each) for each in variables) + b"".join(block(4, each) for each in operators)
    return block(1, content)


def lod_tensor(dtype: int, dims: list[int], content: bytes, lod: tuple[list[int], ...] = ()) -> bytes:
    desc = tensor_desc(dtype, dims)
    levels = b"".join(struct.pack(f"<Q{len(level)}Q", 8 * len(level), *level) for level in lod)
    return struct.pack("<IQ", 0, len(lod)) + levels + struct.pack("<Ii", 0, len(desc)) + desc + content


OLD = (
    attribute("op_role", 0, 0), attribute("op_role_var", 5, []), attribute("op_namescope", 2, "/net/"),
    attribute("op_callstack", 5, ['  File "/home/x/line.py", line 7, in <module>', "    y = fc(x)",
                                  '  File "/p/paddle/fluid/layers/nn.py", line 20, in fc']),
    attribute("use_mkldnn", 6, 0), attribute("use_cudnn", 6, 1), attribute("data_format", 2, "AnyLayout"),
)  # fmt: skip
"""Attributes that Paddle put at many operators, and that mean nothing here."""


def line_model(*extra: bytes, features: int = 3, old: tuple[bytes, ...] = OLD) -> bytes:
    """``out = x @ w + b``, as ``fluid.io.save_inference_model`` of ``layers.fc`` wrote it."""
    variables = [
        raw_variable("feed", 9), raw_variable("fetch", 10), variable("x", 5, [-1, features], lod_level=0),
        variable("w", 5, [features, 1], persistable=True), variable("b", 5, [1], persistable=True),
        variable("xw", 5, [-1, 1]), variable("out", 5, [-1, 1]),
    ]  # fmt: skip
    operators = [
        operator("feed", {"X": ["feed"]}, {"Out": ["x"]}, attribute("col", 0, 0)),
        operator("mul", {"X": ["x"], "Y": ["w"]}, {"Out": ["xw"]}, attribute("x_num_col_dims", 0, 1),
                 attribute("y_num_col_dims", 0, 1), attribute("scale_x", 1, 1.0), attribute("scale_y", 4, [1.0]), *old),
        operator("elementwise_add", {"X": ["xw"], "Y": ["b"]}, {"Out": ["out"]}, attribute("axis", 0, 1), *old),
        *extra,
        operator("fetch", {"X": ["out"]}, {"Out": ["fetch"]}, attribute("col", 0, 0)),
    ]  # fmt: skip
    return program(variables, operators)
