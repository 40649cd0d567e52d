"""The messages of Paddle's ``framework.proto``, built from their published field numbers.

All fields are optional and enumerations are plain numbers, so that a missing field or unknown number gives an error of
fluidlite, which names it, not of the library's parser.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from fluidlite.base.errors import MissingExtraError, SavedModelError

_PACKAGE = "paddle.framework.proto"

# field name: (number, type), "*" repeated; a type with a capital letter is a message
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Version": {"version": (1, "int64")},
    "Attr": {
        "name": (1, "string"),
        "type": (2, "int32"),
        "i": (3, "int32"),
        "f": (4, "float"),
        "s": (5, "string"),
        "ints": (6, "int32*"),
        "floats": (7, "float*"),
        "strings": (8, "string*"),
        "b": (10, "bool"),
        "bools": (11, "bool*"),
        "block_idx": (12, "int32"),
        "l": (13, "int64"),
        "blocks_idx": (14, "int32*"),
        "longs": (15, "int64*"),
    },
    "OpVar": {"parameter": (1, "string"), "arguments": (2, "string*")},
    "OpDesc": {
        "inputs": (1, "OpVar*"),
        "outputs": (2, "OpVar*"),
        "type": (3, "string"),
        "attrs": (4, "Attr*"),
        "is_target": (5, "bool"),
    },
    "TensorDesc": {"data_type": (1, "int32"), "dims": (2, "int64*")},
    "LoDTensorDesc": {"tensor": (1, "TensorDesc"), "lod_level": (2, "int32")},
    "VarType": {
        "type": (1, "int32"),
        "selected_rows": (2, "TensorDesc"),
        "lod_tensor": (3, "LoDTensorDesc"),
        "tensor_array": (4, "LoDTensorDesc"),
    },
    "VarDesc": {
        "name": (1, "string"),
        "type": (2, "VarType"),
        "persistable": (3, "bool"),
        "need_check_feed": (4, "bool"),
    },
    "BlockDesc": {
        "idx": (1, "int32"),
        "parent_idx": (2, "int32"),
        "vars": (3, "VarDesc*"),
        "ops": (4, "OpDesc*"),
        "forward_block_idx": (5, "int32"),
    },
    "ProgramDesc": {"blocks": (1, "BlockDesc*"), "version": (4, "Version")},
}


@cache
def message_classes() -> dict[str, Any]:
    """Return the message classes by name; raise MissingExtraError if the package protobuf is not installed."""
    try:
        descriptors = import_module("google.protobuf.descriptor_pb2")
        pools = import_module("google.protobuf.descriptor_pool")
        factory = import_module("google.protobuf.message_factory")
        get_class = factory.GetMessageClass
    except (ImportError, AttributeError):
        raise MissingExtraError(
            "models that Paddle saved need the package protobuf, 4.22 or later\n  Do: pip install 'fluidlite[paddle]'"
        ) from None
    field_type = descriptors.FieldDescriptorProto
    file = descriptors.FileDescriptorProto(name="fluidlite/framework.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            repeated = kind.endswith("*")
            kind = kind.removesuffix("*")
            proto_field = message.field.add(name=field, number=number)
            proto_field.label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            if kind in _MESSAGES:
                proto_field.type, proto_field.type_name = field_type.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                proto_field.type = getattr(field_type, f"TYPE_{kind.upper()}")
    pool = pools.DescriptorPool()  # a pool of our own: an installed Paddle has these names in the default one
    pool.AddSerializedFile(file.SerializeToString())
    return {name: get_class(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES}


def parse(name: str, content: bytes) -> Any:
    """Parse a message; raise SavedModelError if the bytes are truncated or another message."""
    message = message_classes()[name]()
    try:
        message.ParseFromString(content)
    except Exception as exc:  # the library's DecodeError
        raise SavedModelError(f"the {name} is truncated or no protocol buffer ({exc})") from None
    return message
