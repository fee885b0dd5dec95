"""Load the programs in `examples/` as modules."""

import importlib.util
import sys
from types import ModuleType

from tests.programs import ROOT


def load_example(name: str) -> ModuleType:
    """Run `examples/NAME.py` as the module NAME, so that import paths into it work."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
