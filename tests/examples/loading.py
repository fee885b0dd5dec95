"""Load the programs in `examples/` as modules, and train a tiny model by them."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from t2t_jax import Config
from tests.programs import ROOT
from tests.tiny import tiny_sizes
from tests.trained import records_of


def load_example(name: str) -> ModuleType:
    """Run `examples/NAME.py` as the module NAME, so that import paths into it work."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def quick_config(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Make an example train a tiny model that learns fast, and return its config."""
    fast = {"training.warmup_steps": 5, "training.peak_learning_rate": 0.01}
    fields = tiny_sizes(16, (1, 1)) | fast | {"training.log_every_steps": 1}
    config: Config = example.load_config("quickstart").replace(fields)
    monkeypatch.setattr(example, "load_config", lambda name: config)
    return config


def assert_loss_falls(workdir: Path) -> None:
    """Check that the last training step of a run has a lower loss than the first."""
    losses = [record["loss"] for record in records_of(workdir, "train")]
    assert losses[-1] < losses[0] - 0.1
