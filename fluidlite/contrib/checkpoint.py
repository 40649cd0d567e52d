"""Checkpoints of a Trainer: all state of its program, and its position (epoch and step)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from fluidlite.base.arguments import check_int
from fluidlite.base.errors import SavedModelError
from fluidlite.io.commit import save_files
from fluidlite.io.snapshot import read_file
from fluidlite.io.variables import load_persistables, persistable_writers
from fluidlite.program.program import Program

_PREFIX = "checkpoint_"
_VALUES, _POSITION = "persistables", "position.json"
_MAX_POSITION_BYTES = 4096


class CheckpointConfig:
    """The folder and the frequency of a Trainer's checkpoints.

    Parameters
    ----------
    checkpoint_dir : str, optional
        Default: the working folder.
    max_num_checkpoints : int
        Older ones are removed.
    epoch_interval, step_interval : int
        A checkpoint is saved at steps that ``step_interval`` divides, in epochs that ``epoch_interval`` divides.
    """

    def __init__(
        self,
        checkpoint_dir: str | None = None,
        max_num_checkpoints: int = 3,
        epoch_interval: int = 1,
        step_interval: int = 10,
    ) -> None:
        self.checkpoint_dir = Path(os.getcwd() if checkpoint_dir is None else checkpoint_dir)
        numbers = {
            "max_num_checkpoints": max_num_checkpoints,
            "epoch_interval": epoch_interval,
            "step_interval": step_interval,
        }
        for name, number in numbers.items():
            check_int(f"CheckpointConfig: {name}", number, least=1)
        self.max_num_checkpoints = max_num_checkpoints
        self.epoch_interval = epoch_interval
        self.step_interval = step_interval

    def due(self, epoch: int, step: int) -> bool:
        """Whether to save a checkpoint after this step."""
        return epoch % self.epoch_interval == 0 and step % self.step_interval == 0

    def serials(self) -> list[int]:
        """Numbers of the complete checkpoints, oldest first."""
        numbers = []
        for path in self.checkpoint_dir.glob(_PREFIX + "*"):
            number = path.name.removeprefix(_PREFIX)
            if number.isascii() and number.isdigit() and (path / _POSITION).is_file():
                numbers.append(int(number))
        return sorted(numbers)

    def _folder(self, serial: int) -> Path:
        return self.checkpoint_dir / f"{_PREFIX}{serial}"

    def save(self, program: Program, epoch: int, step: int) -> None:
        """Save the state after a step; the oldest checkpoints beyond ``max_num_checkpoints`` are removed."""
        serials = self.serials()
        serial = serials[-1] + 1 if serials else 0
        text = json.dumps({"epoch": epoch, "step": step}).encode()
        values = persistable_writers(program, _VALUES)
        save_files(self._folder(serial), {**values, _POSITION: text})
        for old in [*serials, serial][: -self.max_num_checkpoints]:
            shutil.rmtree(self._folder(old), ignore_errors=True)

    def restore(self, program: Program, executor: Any) -> tuple[int, int] | None:
        """Load the newest checkpoint; return the epoch and step to resume at, or None without a checkpoint."""
        serials = self.serials()
        if not serials:
            return None
        folder = self._folder(serials[-1])
        path = folder / _POSITION
        content = read_file(path, _MAX_POSITION_BYTES)
        try:
            position = json.loads(content)
            epoch, step = (check_int(name, position[name], SavedModelError) for name in ("epoch", "step"))
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise SavedModelError(f"{path} does not say an epoch and a step: {exc}") from exc
        if epoch < 0 or step < 0:
            raise SavedModelError(f"{path} says epoch {epoch} and step {step}; expected 0 or more")
        load_persistables(executor, folder, program, _VALUES)
        return epoch, step + 1

    def clean(self) -> None:
        """Remove all checkpoints."""
        for serial in self.serials():
            shutil.rmtree(self._folder(serial), ignore_errors=True)
