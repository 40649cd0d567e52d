"""Pickles of arrays that are read as data: all protocols, and pickles that lie or ask for more."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fluidlite.base.array_pickle import load_arrays
from fluidlite.errors import SavedModelError


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("/tmp/fluidlite-was-run"),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_arrays(protocol: int) -> None:
    value = {
        "a": np.arange(6, dtype=">f4").reshape(2, 3), "f": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "e": np.zeros(0), "t": (1, 2.5, "x", b"yz", None, True, -(2**70)), "n": np.float32(3), "d": {1: [[]]},
        "s": np.array(["ab", "c"]),
    }  # fmt: skip
    found = load_arrays(pickle.dumps(value, protocol))
    for key in ("a", "f", "e", "n", "s"):
        np.testing.assert_array_equal(found[key], value[key])
        assert found[key].dtype == value[key].dtype  # type: ignore[attr-defined]
    assert found["t"] == value["t"] and found["d"] == value["d"]


def laughs() -> bytes:
    """Lists in lists, each named twice: 2**60 values."""
    lists = (b"0]q%c(h%ch%ce" % (i, i - 1, i - 1) for i in range(1, 61))
    return b"\x80\x02]q\x00" + b"".join(lists) + b"."


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "names 'os system'"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "names 'os system'"),
        (pickle.dumps(np.array([Evil()], dtype=object)), "names|array of"),
        (pickle.dumps(np.zeros(2, "f4,i4")), "dtype of fields|array of"),
        (pickle.dumps({(1, 2): 3}), "keys are no texts"),
        (pickle.dumps({1, 2}), "opcode"),
        (b"\x80\x02X\xff\xff\xff\x7fa.", "truncated"),
        (b"\x80\x02\x8d" + b"\xff" * 7 + b"\x7f.", "truncated|no pickle"),
        (b"\x80\x02K\x01r\xff\xff\xff\x7f.", ""),
        (b"\x80\x02" + b"]" * 100 + b"a" * 99 + b".", "too deep"),
        (laughs(), "more values"),
        (b"\x80\x02(.", "something else|no pickle"),
        (b"", "truncated|no pickle"),
    ],
)
def test_pickles_that_lie(content: bytes, says: str) -> None:
    if not says:  # a memo of 2**31 is a number like another here
        assert load_arrays(content) == 1
        return
    with pytest.raises(SavedModelError, match=says):
        load_arrays(content, most=100_000)


def _copies(opcode: bytes, count: int) -> bytes:
    """``count`` arrays of one MiB, each of the same bytes."""
    size = 1 << 20
    content = b"\x80\x05]" + opcode + size.to_bytes(8, "little") + bytes(size) + b"\x940"
    content += b"cnumpy._core.numeric\n_frombuffer\n\x940cnumpy\ndtype\n(X\x02\0\0\0u1tR\x940"
    content += b"(J" + size.to_bytes(4, "little") + b"t\x940X\x01\0\0\0C\x940"
    return content + b"h\x01(h\x00h\x02h\x03h\x04tRa" * count + b"."


@pytest.mark.parametrize("opcode", [b"\x8e", b"\x96"], ids=["bytes", "bytearray"])
def test_a_pickle_whose_arrays_share_bytes_takes_no_more_memory_than_its_size_allows(opcode: bytes) -> None:
    assert sum(array.nbytes for array in load_arrays(_copies(opcode, 2))) == 2 << 20
    with pytest.raises(SavedModelError, match="more values"):
        load_arrays(_copies(opcode, 60))


def test_a_pickle_whose_array_lies() -> None:
    good = pickle.dumps(np.arange(6, dtype="uint8").reshape(2, 3), 2)
    assert load_arrays(good).shape == (2, 3)
    at = good.index(b"K\x02K\x03\x86")
    for dims in (b"K\x02K\x04\x86", b"K\xffK\xff\x86"):
        with pytest.raises(SavedModelError, match=r"array of dims \("):
            load_arrays(good[:at] + dims + good[at + 5 :])


def test_random_damage_of_a_pickle() -> None:
    """Every damaged pickle gives an error of ours, or values."""
    good = pickle.dumps({"w": np.arange(6, dtype="f4").reshape(2, 3), "names": ["a", b"b"], "n": 2**40}, 2)
    rng, outcomes = np.random.default_rng(0), set()
    for _ in range(300):
        content = bytearray(good)
        for at in rng.integers(0, len(good), 3):
            content[at] = rng.integers(256)
        try:
            load_arrays(bytes(content))
            outcomes.add("values")
        except SavedModelError:
            outcomes.add("refused")
    assert outcomes == {"values", "refused"}
