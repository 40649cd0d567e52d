"""Trainer, Inferencer and checkpoints; fluid.save and fluid.load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid

RIGHT = np.float32([[1.0], [-2.0], [0.5]])
X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
SAMPLES = [(row, row @ RIGHT + 3.0) for row in X]


def infer() -> Any:
    return fluid.layers.fc(fluid.layers.data("x", [3]), 1)


def train() -> Any:
    out = infer()
    return [fluid.layers.mean(fluid.layers.square_error_cost(out, fluid.layers.data("y", [1]))), out]


def adam() -> Any:
    return fluid.optimizer.Adam(0.1)


def batches() -> Any:
    return fluid.batch(lambda: SAMPLES, 16)()


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_a_line_is_trained_saved_and_used(place: str, tmp_path: Path) -> None:
    trainer = fluid.Trainer(train, adam, place=place)
    told: list[Any] = []
    trainer.train(30, told.append, batches, feed_order=["x", "y"])
    assert [type(event).__name__ for event in told[:3]] == ["BeginEpochEvent", "BeginStepEvent", "EndStepEvent"]
    assert (told[-1], told[-2].step, len(told)) == (fluid.EndEpochEvent(29), 3, 30 * (2 + 2 * 4))
    assert trainer.test(batches, {"y": 1, "x": 0})[0] < 0.01 < float(told[2].metrics[0].reshape(()))
    trainer.save_params(str(tmp_path / "params"))
    trainer.save_inference_model(str(tmp_path / "model"), ["x"], [1])
    (found,) = fluid.Inferencer(infer, str(tmp_path / "params"), place).infer({"x": X})
    np.testing.assert_allclose(found, X @ RIGHT + 3.0, atol=0.2)
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, targets = fluid.io.load_inference_model(tmp_path / "model", exe)
        (again,) = exe.run(program, {feeds[0]: X}, targets)
    np.testing.assert_allclose(again, found, rtol=1e-5, atol=1e-6)
    further = fluid.Trainer(train, adam, str(tmp_path / "params"), place)
    assert further.test(batches)[0] < 0.01


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    def losses(trainer: fluid.Trainer, stop_at: tuple[int, int] | None) -> list[float]:
        found: list[float] = []

        def handler(event: Any) -> None:
            if isinstance(event, fluid.EndStepEvent):
                found.append(float(event.metrics[0].reshape(())))
                if (event.epoch, event.step) == stop_at:
                    trainer.stop()

        trainer.train(3, handler, batches)
        return found

    params = str(tmp_path / "start")
    fluid.Trainer(train, adam).save_params(params)
    whole = losses(fluid.Trainer(train, adam, params), None)
    config = fluid.CheckpointConfig(str(tmp_path / "saved"), max_num_checkpoints=2, step_interval=2)
    first = losses(fluid.Trainer(train, adam, params, checkpoint_config=config), (1, 2))
    assert config.serials() == [2, 3]
    rest = losses(fluid.Trainer(train, adam, params, checkpoint_config=config), None)
    np.testing.assert_allclose(first + rest, whole, rtol=1e-6)
    assert config.serials() == []  # done


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"epoch": -1, "step": 0}', '{"epoch": "1", "step": 0}'])
def test_a_checkpoint_that_lies(tmp_path: Path, text: str) -> None:
    config = fluid.CheckpointConfig(str(tmp_path), step_interval=1)
    trainer = fluid.Trainer(train, adam, checkpoint_config=config)
    trainer.train(1, lambda event: trainer.stop(), batches)
    with fluid.scope_guard(trainer.scope):
        config.save(trainer.train_program, 0, 0)
    (tmp_path / f"checkpoint_{config.serials()[-1]}" / "position.json").write_text(text)
    with pytest.raises(fluid.errors.SavedModelError, match=r"position\.json"):
        fluid.Trainer(train, adam, checkpoint_config=config)


def test_nothing_is_fetched_if_nobody_asks() -> None:
    trainer = fluid.Trainer(train, adam)

    def handler(event: Any) -> None:
        if isinstance(event, fluid.BeginStepEvent):
            event.fetch_metrics = False
        if isinstance(event, fluid.EndStepEvent):
            assert event.metrics == []

    trainer.train(1, handler, batches)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: fluid.Trainer(train, adam, parallel=True), "one place"),
        (lambda: fluid.Trainer(lambda: 3, adam), "train_func returned 3"),
        (lambda: fluid.Trainer(train, lambda: 3), "optimizer_func returned 3"),
        (lambda: fluid.Trainer(train, adam, checkpoint_config=3), "checkpoint_config is 3"),
        (lambda: fluid.Trainer(train, adam).train(1, print), "reader is None"),
        (lambda: fluid.Trainer(train, adam).test(lambda: []), "no batches"),
        (lambda: fluid.Trainer(train, adam).test(batches, {"x": 1, "y": 1}), "fields 0 to 1"),
        (lambda: fluid.Trainer(train, adam).save_inference_model("m", ["x"], [2]), "returned 2 outputs"),
        (lambda: fluid.CheckpointConfig(step_interval=0), "step_interval is 0"),
        (lambda: fluid.Inferencer(lambda: 3, "none"), "infer_func returned 3"),
        (lambda: fluid.Inferencer(infer, "none", parallel=True), "one place"),
        (lambda: fluid.Inferencer(infer, "no such folder"), "no such folder"),
        (lambda: fluid.save(fluid.Program(), "folder/"), "stem"),
        (lambda: fluid.load(3, "folder/stem"), "expected a Program"),
    ],
)
def test_refusals(call: Any, says: str) -> None:
    with pytest.raises(fluid.FluidError, match=says):
        call()


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_save_and_load(place: str, tmp_path: Path) -> None:
    trainer = fluid.Trainer(train, adam, place=place)
    trainer.train(1, lambda event: None, batches)
    program = trainer.train_program
    with fluid.scope_guard(trainer.scope):
        fluid.save(program, tmp_path / "line")
        names = [variable.name for variable in program.list_vars() if variable.persistable]
        values = {name: fluid.global_scope().find_var(name).get_tensor().numpy().copy() for name in names}
    assert sorted(p.name for p in tmp_path.glob("line.*")) == ["line.pdmodel", "line.pdopt", "line.pdparams"]
    with fluid.scope_guard(fluid.Scope()):
        fluid.load(program, tmp_path / "line", trainer.exe)
        for name, value in values.items():
            np.testing.assert_array_equal(fluid.global_scope().find_var(name).get_tensor().numpy(), value)
    with fluid.scope_guard(fluid.Scope()):
        fluid.load(program, str(tmp_path / "line"), var_list=program.all_parameters()[:1])
        assert len(fluid.global_scope().local_var_names()) == 1
    (tmp_path / "line.pdopt").unlink()
    with fluid.scope_guard(fluid.Scope()), pytest.raises(fluid.errors.SavedModelError, match="pdopt"):
        fluid.load(program, tmp_path / "line")
    assert not (tmp_path / "line.pdopt").exists()
