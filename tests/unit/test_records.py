"""Files of records, the readers over them, and loading while a program runs."""

from __future__ import annotations

import gc
import random
import struct
import threading
import time
import weakref
import zlib
from pathlib import Path
from typing import Any

import bytes_of_models as pb
import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import LoaderError, ProgramError, SavedModelError
from fluidlite.loaders.record_file import read_records

WORDS = [([1, 2, 3], 0), ([4], 1), ([5, 6], 0), ([7, 8, 9, 10], 1), ([11], 0)]
EOF = fluid.core.EOFException
KINDS = fluid.core.RecordIOWriter.Compressor
SHAPES: Any = dict(shapes=[[-1, 1], [-1, 1]], lod_levels=[1, 0], dtypes=["int64", "int64"])


def feeder() -> fluid.DataFeeder:
    with fluid.program_guard(fluid.Program()):
        words = fluid.layers.data("words", [1], dtype="int64", lod_level=1)
        label = fluid.layers.data("label", [1], dtype="int64")
        return fluid.DataFeeder([words, label], "cpu")


def written(path: Path, size: int = 2, compressor: int = KINDS.Snappy) -> str:
    convert = fluid.recordio_writer.convert_reader_to_recordio_file
    assert convert(str(path), fluid.batch(lambda: iter(WORDS), size), feeder(), compressor) == -(-len(WORDS) // size)
    return str(path)


def by_hand() -> bytes:
    """The first record of ``written(size=2)`` and its file, by the page of the format."""
    fields = [
        struct.pack("<BBB2qQ3Q", 3, 2, 1, 4, 1, 3, 0, 3, 4) + struct.pack("<4q", 1, 2, 3, 4),
        struct.pack("<BBB2q", 3, 2, 0, 2, 1) + struct.pack("<2q", 0, 1),
    ]
    raw = struct.pack("<I", 2) + b"".join(fields)
    return b"FLRECORD" + struct.pack("<I", 1) + struct.pack("<BQQI", 0, len(raw), len(raw), zlib.crc32(raw)) + raw


def test_the_format_is_the_documented_one(tmp_path: Path) -> None:
    content = Path(written(tmp_path / "a.recordio", compressor=KINDS.NoCompress)).read_bytes()
    assert content.startswith(by_hand())
    (tmp_path / "hand").write_bytes(by_hand())
    ((words, label),) = read_records(tmp_path / "hand")
    assert words[0].tolist() == [[1], [2], [3], [4]] and words[1] == ((0, 3, 4),)
    assert label[0].tolist() == [[0], [1]] and label[1] == ()


@pytest.mark.parametrize("compressor", [KINDS.NoCompress, KINDS.Snappy, KINDS.Gzip])
@pytest.mark.parametrize("place", fluid.places(), ids=str)
def test_a_program_reads_its_file_again_and_again(tmp_path: Path, place: Any, compressor: int) -> None:
    name = written(tmp_path / "a.recordio", compressor=compressor)
    reader = fluid.layers.double_buffer(fluid.layers.open_recordio_file(name, **SHAPES))
    words, label = fluid.layers.read_file(reader)
    total = fluid.layers.reduce_sum(words)
    exe = fluid.Executor(place)
    for _ in range(2):
        sums = []
        with pytest.raises(EOF):
            while True:
                (found, tensor) = exe.run(fetch_list=[total, words], return_numpy=False)
                sums.append(int(np.array(found).ravel()[0]))
        assert sums == [10, 45, 11]
        assert tensor.recursive_sequence_lengths() == [[1]]
        reader.reset()
    assert fluid.layers.read_file(reader) == [words, label]


def test_several_files_batches_and_passes(tmp_path: Path) -> None:
    name = str(tmp_path / "a.recordio")
    convert = fluid.recordio_writer.convert_reader_to_recordio_files
    assert convert(name, 2, fluid.batch(lambda: iter(WORDS), 1), feeder(), feed_order=["words", "label"]) == 5
    names = sorted(str(path) for path in tmp_path.iterdir())
    assert [Path(each).name for each in names] == [f"a-0000{i}.recordio" for i in range(3)]
    reader = fluid.layers.open_files(names, **SHAPES, pass_num=2, thread_num=2)
    reader = fluid.layers.batch(reader, batch_size=3)  # of 10 records: three batches, one record is left out
    words, _ = fluid.layers.read_file(reader)
    exe, lengths = fluid.Executor("cpu"), []
    with pytest.raises(EOF):
        while True:
            lengths += exe.run(fetch_list=[words], return_numpy=False)[0].recursive_sequence_lengths()[0]
    assert lengths == [3, 1, 2, 4, 1, 3, 1, 2, 4]


def test_shuffled_records_are_the_same_records(tmp_path: Path) -> None:
    name = written(tmp_path / "a.recordio", 1)
    words, _ = fluid.layers.read_file(fluid.layers.shuffle(fluid.layers.open_files([name], **SHAPES), 4))
    random.seed(3)
    exe, found = fluid.Executor("cpu"), []
    with pytest.raises(EOF):
        while True:
            found.append(exe.run(fetch_list=[words], return_numpy=False)[0].numpy().ravel().tolist())
    assert found != [row for row, _ in WORDS]
    assert sorted(found) == sorted(row for row, _ in WORDS)


def test_random_data_train_a_program() -> None:
    fluid.default_main_program().random_seed = 5
    reader = fluid.layers.random_data_generator(-1.0, 2.0, [[8, 3], [8, 1]], [0, 0])
    x, y = fluid.layers.read_file(reader)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, 1), y))
    fluid.optimizer.SGD(0.01).minimize(loss)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    first, second = (exe.run(fetch_list=[x, loss]) for _ in range(2))
    assert first[0].shape == (8, 3) and -1 <= first[0].min() < first[0].max() <= 2
    assert not np.array_equal(first[0], second[0])
    reader.reset()
    np.testing.assert_array_equal(exe.run(fetch_list=[x])[0], first[0])


def test_layers_change_what_a_reader_gives(tmp_path: Path) -> None:
    reader = fluid.layers.open_files([written(tmp_path / "a.recordio")], **SHAPES)
    before = fluid.layers.Preprocessor(reader)
    with pytest.raises(ProgramError, match="no block yet"):
        before()
    with pytest.raises(ProgramError, match="belongs into the block"):
        before.inputs()
    with before.block():
        words, label = before.inputs()
        before.outputs(fluid.layers.sequence_pool(fluid.layers.cast(words, "float32"), "sum"), label)
    sums, _ = fluid.layers.read_file(fluid.layers.double_buffer(before()))
    assert sums.dtype == "float32" and not fluid.default_main_program().global_block().ops
    exe = fluid.Executor("cpu")
    found = [exe.run(fetch_list=[sums])[0].ravel().tolist() for _ in range(3)]
    assert found == [[6, 4], [11, 34], [11]]
    with pytest.raises(EOF):
        exe.run(fetch_list=[sums])
    with pytest.raises(ProgramError, match="entered before"), before.block():
        pass
    for layer, says in ((lambda x: fluid.layers.fc(x, 2), "have parameters"), (None, "named no outputs")):
        with pytest.raises(ProgramError, match=says):
            other = fluid.layers.Preprocessor(reader)
            with other.block():
                if layer is not None:
                    other.outputs(layer(fluid.layers.cast(other.inputs()[1], "float32")))


def test_an_interrupted_conversion_leaves_the_old_file(tmp_path: Path) -> None:
    name = written(tmp_path / "a.recordio")
    before = Path(name).read_bytes()

    def broken() -> Any:
        yield WORDS[:1]
        raise OSError("the disk of the user")

    with pytest.raises(OSError, match="the disk"):
        fluid.recordio_writer.convert_reader_to_recordio_file(name, broken, feeder())
    assert Path(name).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


BAD = {
    "empty": (b"", "no file of records"),
    "other": (b"FLRECORD\2\0\0\0", "another version"),
    "head": (by_hand()[:20], "record 0 is truncated"),
    "content": (by_hand()[:-3], "is to have|truncated"),
    "checksum": (by_hand()[:-1] + b"\7", "checksum"),
    "size": (by_hand()[:13] + struct.pack("<QQ", 2**62, 2**62) + by_hand()[29:], "4,611,686,018,427,387,904"),
}


def record(raw: bytes, packed: int = 0, claimed: int | None = None) -> bytes:
    content = zlib.compress(raw) if packed else raw
    head = struct.pack("<BQQI", packed, len(content), len(raw) if claimed is None else claimed, zlib.crc32(content))
    return by_hand()[:12] + head + content


BAD |= {
    "bomb": (record(bytes(1 << 20), 1, claimed=100), "unpacks to other than 100"),
    "unpacked": (record(b"\0\0\0\0", 1, claimed=90), "unpacks to other than 90"),
    "fields": (record(struct.pack("<I", 2**31)), "2,147,483,648 fields"),
    "after": (record(struct.pack("<I", 0) + b"x"), "after its fields"),
    "dims": (record(struct.pack("<IBBB2q", 1, 3, 2, 0, 2**40, 2**40)), "2\\*\\*47"),
    "few numbers": (record(struct.pack("<IBBBq", 1, 3, 1, 0, 2**30)), "more than the record's"),
    "negative": (record(struct.pack("<IBBBq", 1, 3, 1, 0, -1)), "negative"),
    "dtype": (record(struct.pack("<IBBB", 1, 99, 0, 0)), "99 is not the number"),
    "rank": (record(struct.pack("<IBBB", 1, 3, 200, 0)), "200 dims"),
    "lod": (record(struct.pack("<IBBBqQQ", 1, 3, 1, 1, 0, 1, 5)), "lod level"),
    "offsets": (record(struct.pack("<IBBBqQ", 1, 3, 1, 1, 0, 2**60)), "more than the record's"),
    "another": (record(struct.pack("<IBBBq", 1, 3, 1, 0, 0)), "has 1 fields; 2 shapes"),
}


@pytest.mark.parametrize("fault", BAD)
def test_files_that_lie_end_the_run_with_an_error(tmp_path: Path, fault: str) -> None:
    content, text = BAD[fault]
    (tmp_path / "a.recordio").write_bytes(content)
    words, _ = fluid.layers.read_file(fluid.layers.open_files([str(tmp_path / "a.recordio")], **SHAPES))
    with pytest.raises(LoaderError, match=text) as caught:
        fluid.Executor("cpu").run(fetch_list=[words])
    assert "a.recordio" in str(caught.value)
    assert "\n  Do: " in str(caught.value)


def test_misuse_of_readers(tmp_path: Path) -> None:
    name = written(tmp_path / "a.recordio")
    wrong: Any = {**SHAPES, "dtypes": ["int64", "float32"]}
    words, _ = fluid.layers.read_file(fluid.layers.open_files([name], **wrong))
    with pytest.raises(LoaderError, match=r"record 0: field 1 is int64\[2, 1\]"):
        fluid.Executor("cpu").run(fetch_list=[words])
    for call in (
        lambda: fluid.layers.open_files([], **SHAPES),
        lambda: fluid.layers.open_files([name], [[-1]], [0, 0], ["int64"]),
        lambda: fluid.layers.open_files([name], **{**SHAPES, "shapes": [[2**50], [1]]}),
        lambda: fluid.layers.random_data_generator(0.0, 1.0, [[-1, 3]], [0]),
        lambda: fluid.layers.random_data_generator(2.0, 1.0, [[1, 3]], [0]),
        lambda: fluid.layers.shuffle(3, 4),
        lambda: fluid.layers.batch(fluid.layers.open_files([name], **SHAPES), 0),
    ):
        with pytest.raises(ProgramError):
            call()
    reader = fluid.layers.open_files([name], **SHAPES)
    fluid.layers.read_file(reader)
    with pytest.raises(ProgramError, match="read_file was called"):
        fluid.layers.shuffle(reader, 4)
    with pytest.raises(LoaderError, match="ends with"):
        fluid.recordio_writer.convert_reader_to_recordio_files(name + "x", 2, lambda: [], feeder())
    with pytest.raises(LoaderError, match="feed_order names 'a'"):
        fluid.recordio_writer.convert_reader_to_recordio_file(name, lambda: [], feeder(), feed_order=["a"])
    with pytest.raises(LoaderError, match="cannot be written"):
        fluid.recordio_writer.convert_reader_to_recordio_file(str(tmp_path / "no" / "a"), lambda: [], feeder())


@pytest.mark.parametrize("place", fluid.places(), ids=str)
def test_load_reads_a_file_at_each_run(tmp_path: Path, place: Any) -> None:
    value = np.arange(6, dtype="float32").reshape(3, 2)
    path = tmp_path / "v"
    path.write_bytes(pb.lod_tensor(5, [3, 2], value.tobytes()))
    out = fluid.layers.create_global_var([3, 2], 0.0, "float32", persistable=True, name="v")
    half = fluid.default_main_program().current_block().create_var("h", [3, 2], "float16")
    fluid.layers.load(out, str(path))
    fluid.layers.load(half, str(path), load_as_fp16=True)
    double = fluid.layers.scale(out, 2.0)
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    for factor in (1, 3):
        path.write_bytes(pb.lod_tensor(5, [3, 2], (factor * value).tobytes()))
        found = exe.run(fetch_list=[double, out, half])
        for array, times in zip(found, (2, 1, 1), strict=True):
            np.testing.assert_array_equal(array, times * factor * value)
    with fluid.scope_guard(fluid.Scope()):
        exe.run(fluid.default_startup_program())
        fluid.io.save_vars(exe, str(tmp_path / "ours"), vars=[out])
        path.write_bytes(next((tmp_path / "ours").glob("v*")).read_bytes())
    assert not exe.run(fetch_list=[double])[0].any()
    path.write_bytes(pb.lod_tensor(5, [2, 3], value.tobytes()))
    with pytest.raises(SavedModelError, match="variable 'v' is"):
        exe.run(fetch_list=[double])
    path.unlink()
    with pytest.raises(SavedModelError, match="there is no file"):
        exe.run(fetch_list=[double])


def test_a_program_that_is_dropped_takes_its_readers_with_it() -> None:
    """The thread that makes batches holds none of them."""
    main, start = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, start):
        reader = fluid.layers.random_data_generator(0.0, 1.0, [[2, 3]], [0])
        x = fluid.layers.read_file(reader)
    fluid.Executor("cpu").run(main, fetch_list=[x])
    gone = [weakref.ref(main), weakref.ref(reader)]
    del main, start, reader, x
    gc.collect()
    assert [each() for each in gone] == [None, None]
    deadline = time.monotonic() + 20
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not loader_threads()


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fluidlite-loader")]
