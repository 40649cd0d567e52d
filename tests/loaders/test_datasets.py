"""Datasets of text files: programs trained from them, what they refuse, and the scripts that write them."""

from __future__ import annotations

import io
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import FeedError, FetchError, LoaderError, ProgramError
from fluidlite.incubate.data_generator import MultiSlotDataGenerator, MultiSlotStringDataGenerator

L = fluid.layers
IDS, DENSE, FIELDS = 50, 4, 3
PLACES = [str(place) for place in fluid.places() if place.kind in ("cpu", "opencl", "fpga")]
Sample = tuple[list[list[int]], list[float], list[int]]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Give every test new programs, names and scope."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 90
    with (
        fluid.unique_name.guard(),
        fluid.program_guard(main, startup),
        fluid.scope_guard(fluid.Scope()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", fluid.FallbackWarning)
        fluid.set_fallback("allow")
        yield


def clicks(count: int) -> list[Sample]:
    """Samples of fields of ids, as many as one likes, dense features and a label."""
    rng = np.random.default_rng(5)
    made = []
    for _ in range(count):
        fields = [rng.integers(0, IDS, rng.integers(1, 4)).tolist() for _ in range(FIELDS)]
        dense = np.float32(rng.normal(size=DENSE)).tolist()
        made.append((fields, dense, [int(sum(map(sum, fields)) % 3 == 0)]))
    return made


def written(folder: Path, samples: list[Sample], files: int = 2) -> list[str]:
    paths = [folder / f"part-{number}.txt" for number in range(files)]
    size = -(-len(samples) // files)
    for number, path in enumerate(paths):
        lines = [[*fields, dense, label] for fields, dense, label in samples[number * size : (number + 1) * size]]
        text = (" ".join(f"{len(slot)} {' '.join(map(repr, slot))}" for slot in line) for line in lines)
        path.write_text("\n".join(text) + "\n")
    return [str(path) for path in paths]


def deep_fm() -> tuple[list[Any], Any, Any]:
    """The variables, the loss and the AUC of DeepFM, as recommending scripts of Fluid 1.5 built it."""
    fields = [L.data(f"C{number}", [1], dtype="int64", lod_level=1) for number in range(FIELDS)]
    dense, label = L.data("dense", [DENSE]), L.data("label", [1], dtype="int64")

    def embedded(field: Any, name: str, size: int) -> Any:
        attr = fluid.ParamAttr(name=name, initializer=fluid.initializer.Normal(scale=0.1))
        return L.sequence_pool(L.embedding(field, [IDS, size], is_sparse=True, param_attr=attr), "sum")

    first = L.sums([*(embedded(each, "one", 1) for each in fields), L.fc(dense, 1)])
    vectors = [*(embedded(each, "two", 6) for each in fields), L.fc(dense, 6)]
    total = L.square(L.sums(vectors)) - L.sums([L.square(each) for each in vectors])
    second = L.reduce_sum(total, dim=1, keep_dim=True) * 0.5
    hidden = L.fc(L.concat(vectors, axis=1), 16, act="relu")
    predict = L.sigmoid(L.sums([first, second, L.fc(hidden, 1)]))
    cost = L.mean(L.log_loss(predict, L.cast(label, "float32")))
    area, *_ = L.auc(L.concat([1.0 - predict, predict], axis=1), label, num_thresholds=2**8)
    return [*fields, dense, label], cost, area


def dataset_of(kind: str, files: list[str], variables: list[Any], size: int = 16) -> Any:
    made = fluid.DatasetFactory().create_dataset(kind)
    made.set_batch_size(size)
    made.set_filelist(files)
    made.set_use_var(variables)
    if kind == "InMemoryDataset":
        made.load_into_memory()
    return made


def state(program: Any) -> dict[str, Any]:
    scope = fluid.global_scope()
    return {v.name: np.array(scope.find_var(v.name).get_tensor()) for v in program.list_vars() if v.persistable}


@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
@pytest.mark.parametrize("place", PLACES)
def test_a_program_is_trained_by_files_as_by_feeds(place: str, kind: str, tmp_path: Path, capsys: Any) -> None:
    samples = clicks(70)
    variables, cost, area = deep_fm()
    main = fluid.default_main_program()
    test = main.clone(for_test=True)
    fluid.optimizer.Adam(0.02).minimize(cost)
    exe, feeder = fluid.Executor(place), fluid.DataFeeder(variables, "cpu")
    batches = [feeder.feed([(*fields, dense, label) for fields, dense, label in samples[at : at + 16]])
               for at in range(0, 70, 16)]  # fmt: skip
    with fluid.scope_guard(fluid.Scope()):
        exe.run(fluid.default_startup_program())
        losses = [float(exe.run(main, feed, [cost])[0][0]) for _ in range(3) for feed in batches]
        expected = state(main)
        tested = [float(exe.run(test, feed, [cost])[0][0]) for feed in batches]
    with fluid.scope_guard(fluid.Scope()):
        exe.run(fluid.default_startup_program())
        dataset = dataset_of(kind, written(tmp_path, samples), variables)
        dataset.set_thread(2)
        for _ in range(3):
            exe.train_from_dataset(main, dataset, fetch_list=[cost, area], fetch_info=["loss", "auc"], print_period=2)
        found = state(main)
        printed = capsys.readouterr().out
        exe.infer_from_dataset(test, dataset, thread=1, fetch_list=[cost], print_period=1)
    assert losses[-1] < losses[0]
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    shown = [line.split("batch: [")[1].split("], loss: [") for line in printed.splitlines()]
    assert [number for number, _ in shown] == ["2", "4"] * 3
    assert [float(text.split("], auc: [")[0]) for _, text in shown] == [
        losses[5 * epoch + at] for epoch in range(3) for at in (1, 3)
    ]
    printed = capsys.readouterr().out
    assert [float(line.split(f"{cost.name}: [")[1].rstrip("]")) for line in printed.splitlines()] == tested


def test_what_is_loaded_is_shuffled_counted_and_let_go(tmp_path: Path) -> None:
    label = L.data("label", [1], dtype="int64")
    path = tmp_path / "numbers"
    path.write_text("".join(f"1 {number}\n" for number in range(40)))
    dataset = dataset_of("InMemoryDataset", [str(path)], [label], 8)
    assert dataset.get_memory_data_size() == 40
    dataset.local_shuffle()
    dataset.global_shuffle()

    def read() -> list[int]:
        loader = fluid.io.DataLoader.from_dataset(dataset, "cpu")
        return [n for feed in loader for n in feed[0]["label"].numpy().ravel().tolist()]

    found = read()
    assert found != list(range(40))
    assert sorted(found) == list(range(40))
    assert read() == found
    dataset.release_memory()
    assert dataset.get_memory_data_size() == 0
    with pytest.raises(LoaderError, match="load_into_memory"):
        fluid.Executor("cpu").infer_from_dataset(dataset=dataset)
    dataset.preload_into_memory()
    dataset.wait_preload_done()
    assert read() == list(range(40))


def test_numbers_take_the_declared_dims(tmp_path: Path) -> None:
    """A uint64 that no int64 holds keeps its bits."""
    image, ids = fluid.data("image", [None, 2, -1]), L.data("ids", [1], dtype="int64", lod_level=1)
    flat = fluid.data("flat", [None], dtype="int64")
    path = tmp_path / "rows"
    path.write_text("4 1 -2.5 .5 1e-3 2 18446744073709551615 7 1 -3\n4 inf nan 0 1 1 5 1 9\n")
    dataset = dataset_of("QueueDataset", [str(path)], [image, ids, flat], 2)
    (feed,) = dataset.epoch("cpu")
    np.testing.assert_array_equal(
        feed["image"].numpy(), np.float32([[[1, -2.5], [0.5, 1e-3]], [[np.inf, np.nan], [0, 1]]])
    )
    assert (feed["ids"].numpy().ravel().tolist(), feed["ids"].lod()) == ([-1, 7, 5], [[0, 2, 3]])
    assert feed["flat"].numpy().tolist() == [-3, 9]
    assert 'name: "ids"\n    type: "uint64"\n    is_dense: false' in dataset.desc()


FAULTS = {
    "1 1 2 0.5": "slot 'x' has 1 numbers; its count says 2",
    "1 1 2 0.5 1 1 0": "goes on with '1' after 2 slots",
    "1 1": "slot 'x' is missing",
    "": "slot 'ids' is missing",
    "0 2 0.5 1": r"slot 'ids' has the count '0'(.|\n)*pad",
    "-1 2 0.5 1": "slot 'ids' has the count '-1'",
    "1.0 2 2 0.5 1": "slot 'ids' has the count '1.0'",
    "99999999999999999999 2 2 0.5 1": "slot 'ids' has the count '99999999999999999999'",
    "999999999999999999 2 2 0.5 1": "slot 'ids' has 4 numbers; its count says 999999999999999999",
    "1 1 1 0.5": "slot 'x' has 1 numbers; expected 2, as it is declared",
    "1 1.5 2 0.5 1": "slot 'ids' has '1.5'; expected a whole number of 64 bits",
    "1 18446744073709551616 2 0.5 1": "slot 'ids' has '18446744073709551616'",
    "1 1_0 2 0.5 1": "slot 'ids' has '1_0'",
    "1 1 2 0.5 1_0": "slot 'x' has '1_0'; expected a float32",
    "1 1 2 0.5 1e39": "slot 'x' has '1e39'",
    "1 1 2 0.5 1e999": "slot 'x' has '1e999'",
    "1 1 2 0.5 0x1": "slot 'x' has '0x1'",
    "1 1 2 0.5 \u0661": r"slot 'x' has '\\\\xd9\\\\xa1'",
    "1 1 2 \x00 1": "slot 'x' has",
}


@pytest.mark.parametrize("line", FAULTS)
def test_every_number_of_a_file_is_checked(line: str, tmp_path: Path) -> None:
    variables = [L.data("ids", [1], dtype="int64", lod_level=1), L.data("x", [2])]
    path = tmp_path / "faulty.txt"
    path.write_text(f"1 1 2 0.5 1\n{line}\n", encoding="utf-8")
    text = rf"faulty\.txt, line 2.*{FAULTS[line]}"
    with pytest.raises(LoaderError, match=text):
        dataset_of("InMemoryDataset", [str(path)], variables)
    dataset = dataset_of("QueueDataset", [str(path)], variables, 1)
    out = L.reduce_sum(variables[1])
    with pytest.raises(LoaderError, match=text):
        fluid.Executor("cpu").train_from_dataset(dataset=dataset, fetch_list=[out], print_period=1)


def test_mutants_of_a_file_are_read_as_they_are_or_refused(tmp_path: Path) -> None:
    variables = [L.data("ids", [1], dtype="int64", lod_level=1), L.data("x", [2])]
    good, draw, refused = b"2 17 4 2 0.5 -1e3\n1 9 2 .25 7\n", random.Random(7), 0
    for _ in range(400):
        raw = bytearray(good)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(raw))
            raw[at : at + draw.randint(0, 2)] = draw.choice(
                [b"", b" ", b"\n", b"-", b"_", b"e9", b"1" * 30, b"\xff", b"\0"]
            )
        (tmp_path / "mutant").write_bytes(raw)
        try:
            samples = list(dataset_of("InMemoryDataset", [str(tmp_path / "mutant")], variables, 1))
        except LoaderError as error:
            assert "mutant, line " in str(error) or not raw.strip(b"\n"), error
            refused += 1
            continue
        for (ids, x), line in zip(samples, bytes(raw).splitlines(), strict=True):
            words = line.decode("ascii").split()
            assert [int(words[0]), int(words[len(ids) + 1])] == [len(ids), 2]
            assert list(ids) == [int(word) for word in words[1 : len(ids) + 1]]
            np.testing.assert_array_equal(np.float32(x), np.float32(words[len(ids) + 2 :]))
    assert 100 < refused < 400


def test_a_line_without_an_end_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("fluidlite.loaders.multi_slot.MAX_LINE_BYTES", 20)
    (tmp_path / "long").write_text("9 " + "1 " * 9)
    with pytest.raises(LoaderError, match=r"long, line 1 has 20 bytes or more"):
        dataset_of("InMemoryDataset", [str(tmp_path / "long")], [L.data("x", [9])])


@pytest.mark.parametrize(("command", "sums"), [
    (f"{sys.executable} -c 'import sys; sys.stdout.writelines(\"1 \" + line for line in sys.stdin)'", [3, 7]),
    ("sed 's/^/1 /' | tac", [7, 3]), ("sed -e s/^/1@/ -e y/@/\\ /", [3, 7]),
])  # fmt: skip
def test_a_command_makes_the_lines(command: str, sums: list[int], tmp_path: Path) -> None:
    """It runs in a shell only where it is written for one; the file is its input, whatever its name."""
    (tmp_path / "$(touch here); x").write_text("3\n7\n")
    dataset = fluid.DatasetFactory().create_dataset()
    dataset.set_use_var([L.data("x", [1])])
    dataset.set_filelist([str(tmp_path / "$(touch here); x")])
    dataset.set_pipe_command(command)
    assert [feed["x"].numpy().tolist() for feed in dataset.epoch("cpu")] == [[[n]] for n in sums]
    assert [path.name for path in tmp_path.iterdir()] == ["$(touch here); x"]


def test_commands_that_fail_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1 3\n" * 10_000)
    dataset = fluid.DatasetFactory().create_dataset()
    dataset.set_use_var([L.data("x", [1])])
    for files, command, text in (
        (["x"], "false", "'false' ended with status 1, reading '.*x'"),
        (["x"], "no_such_command", "'no_such_command' cannot be run"),
        (["x"], "no_such_command | cat && exit 3", "ended with status 3"),
        (["y"], "cat", "y' cannot be read"),
        ([""], "cat", "cannot be read"),
    ):
        dataset.set_filelist([str(tmp_path / name) for name in files])
        dataset.set_pipe_command(command)
        with pytest.raises(LoaderError, match=text):
            list(dataset.epoch("cpu"))
    dataset.set_filelist([str(tmp_path / "x")])
    dataset.set_pipe_command("cat && sleep 3 | cat")
    epoch = dataset.epoch("cpu")
    next(epoch)
    epoch.close()  # ends the command


def test_files_without_a_line(tmp_path: Path) -> None:
    (tmp_path / "none.txt").touch()
    memory = dataset_of("InMemoryDataset", [str(tmp_path / "none.txt")], [L.data("x", [1])], 1)
    assert memory.get_memory_data_size() == 0
    with pytest.raises(LoaderError, match=r"no line in .*none\.txt"):
        memory.local_shuffle()
    memory.release_memory()
    with pytest.raises(LoaderError, match="load_into_memory"):
        memory.local_shuffle()


def test_misuse_of_datasets(tmp_path: Path) -> None:
    x = L.data("x", [1])
    dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
    memory = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    exe = fluid.Executor("cpu")
    for call, text in (
        (lambda: fluid.DatasetFactory().create_dataset("FileDataset"), "'FileDataset'; expected 'QueueDataset'"),
        (lambda: dataset.set_batch_size(0), "set_batch_size: 0"),
        (lambda: dataset.set_thread("2"), "set_thread is str"),
        (lambda: dataset.set_filelist("a.txt"), "set_filelist.*a list of paths"),
        (lambda: dataset.set_use_var(["x"]), "set_use_var.*expected variables"),
        (lambda: dataset.set_use_var([L.data("b", [1], dtype="int32")]), "int32.*int64 or float32"),
        (lambda: dataset.set_use_var([L.data("c", [2], lod_level=1)]), "rows of one number"),
        (lambda: dataset.set_use_var([L.data("d", [-1, -1, -1])]), "at most one unknown dim"),
        (lambda: dataset.set_pipe_command("sed 'x"), "no command"),
        (lambda: dataset.set_pipe_command(" "), "empty"),
        (lambda: dataset.local_shuffle(), "InMemoryDataset"),
        (lambda: dataset.epoch("cpu"), "set_filelist"),
        (lambda: memory.load_into_memory(), "set_filelist"),
        (lambda: memory.global_shuffle(object()), "no parameter servers"),
    ):
        with pytest.raises(LoaderError, match=text):
            call()
    with pytest.raises(AttributeError, match=r"set_hdfs_config.*no parameter servers"):
        dataset.set_hdfs_config("name", "ugi")
    (tmp_path / "x").write_text("1 3\n")
    dataset.set_filelist([str(tmp_path / "x")])
    dataset.set_use_var([x])
    for arguments, error, text in (
        ({"dataset": None}, ProgramError, "DatasetFactory"),
        ({"fetch_list": [x], "fetch_info": []}, FetchError, "0 texts for the 1 variables"),
        ({"print_period": 0}, ProgramError, "print_period"),
    ):
        with pytest.raises(error, match=text):
            exe.train_from_dataset(**{"dataset": dataset, **arguments})
    with pytest.raises(ProgramError, match="var_dict"):
        fluid.executor.FetchHandler()


@pytest.mark.parametrize("compiled", [False, True])
def test_slots_that_a_program_does_not_have_are_left_out(compiled: bool, tmp_path: Path, capsys: Any) -> None:
    """As of a program for inference, which has no label."""
    (tmp_path / "x").write_text("1 3 1 0\n")
    variables = [L.data("x", [1]), L.data("label", [1], dtype="int64")]
    dataset = dataset_of("QueueDataset", [str(tmp_path / "x")], variables)
    with fluid.program_guard(program := fluid.Program()):
        out = L.scale(L.data("x", [1]), 2.0)
    wanted: Any = fluid.CompiledProgram(program) if compiled else program
    fluid.Executor("cpu").infer_from_dataset(wanted, dataset, fetch_list=[out], print_period=1)
    assert capsys.readouterr().out.endswith("batch: [1], scale_0.tmp_0: [6.0]\n")
    with pytest.raises(FeedError, match="'x', which the program does not have"):
        fluid.Executor("cpu").infer_from_dataset(fluid.Program(), dataset)


def test_times_of_operators_and_a_handler(tmp_path: Path, capsys: Any) -> None:
    x = L.data("x", [1])
    out = L.reduce_sum(L.exp(x))
    (tmp_path / "x").write_text("1 0\n1 0\n1 0\n")
    told: list[Any] = []

    class Handler(fluid.executor.FetchHandler):
        def handler(self, res_dict: dict[str, Any]) -> None:
            told.append(res_dict)
            super().handler(res_dict)

    handler = Handler({"total": out}, period_secs=0)
    dataset = dataset_of("QueueDataset", [str(tmp_path / "x")], [x], 2)
    fluid.Executor("cpu").train_from_dataset(dataset=dataset, debug=True, fetch_handler=handler)
    assert [each["total"].tolist() for each in told] == [[2], [1]]
    printed = capsys.readouterr().out
    assert "exp" in printed
    assert "total: 2.0" in printed


# Writing files -------------------------------------------------------------------------------------------------------


class Words(MultiSlotDataGenerator):
    def generate_sample(self, line: str | None) -> Any:
        def samples() -> Iterator[Any]:
            for part in (line or "3 4;0.5;7").split(","):
                ids, value, label = part.split(";")
                yield ("ids", [int(i) for i in ids.split()]), ("value", [float(value)]), ("label", [int(label)])
                yield None

        return samples


class Padded(MultiSlotStringDataGenerator):
    def generate_sample(self, line: str | None) -> Any:
        return lambda: [[("ids", (line or "1").split())]]

    def generate_batch(self, samples: Any) -> Any:
        longest = max(len(ids) for ((_, ids),) in samples)
        return lambda: ([("ids", ids + ["0"] * (longest - len(ids)))] for ((_, ids),) in samples)


def test_generators_write_what_datasets_read(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("1;2;0,5 6;1e-05;1\n9;3.5;0\n"))
    words = Words()
    words.run_from_stdin()
    text = capsys.readouterr().out
    assert text == "1 1 1 2.0 1 0\n2 5 6 1 1e-05 1 1\n1 9 1 3.5 1 0\n"
    assert words._proto_info == [("ids", "uint64"), ("value", "float"), ("label", "uint64")]
    (tmp_path / "x").write_text(text)
    variables = [L.data("ids", [1], dtype="int64", lod_level=1),
                 L.data("value", [1]), L.data("label", [1], dtype="int64")]  # fmt: skip
    (feed,) = dataset_of("QueueDataset", [str(tmp_path / "x")], variables, 3).epoch("cpu")
    assert feed["ids"].numpy().ravel().tolist() == [1, 5, 6, 9]
    words.run_from_memory()
    assert capsys.readouterr().out == "2 3 4 1 0.5 1 7\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n2 3 4\n5\n"))
    padded = Padded()
    padded.set_batch(2)
    padded.run_from_stdin()
    assert capsys.readouterr().out == "3 1 0 0\n3 2 3 4\n1 5\n"


@pytest.mark.parametrize(("kind", "sample", "text"), [
    (Words, 3, "a sample is int"), (Words, [3], "a slot is int"), (Words, [("a", [1], 2)], "a slot is"),
    (Words, [(1, [1])], "a slot is"), (Words, [("a", 1)], "slot 'a' is int"), (Words, [("a", [])], "'a' is empty"),
    (Words, [("a", ["1"])], "'a' holds str"), (Words, [("a", [True])], "'a' holds bool"),
    (Padded, [("a", [1])], "'a' holds int"),
])  # fmt: skip
def test_samples_that_are_none(kind: Any, sample: Any, text: str) -> None:
    with pytest.raises(LoaderError, match=text):
        kind()._gen_str(sample)


def test_samples_have_the_same_slots() -> None:
    words = Words()
    words._gen_str([("a", [1])])
    with pytest.raises(LoaderError, match=r"the slots \['b'\]; the first one had \['a'\]"):
        words._gen_str([("b", [1])])
    with pytest.raises(LoaderError, match="set_batch"):
        words.set_batch(0)
