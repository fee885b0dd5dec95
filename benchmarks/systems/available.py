"""The systems that can be compared, and which of them are installed here."""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from t2t_jax.errors import UserError

Kind = Literal["train", "decode", "translate"]

_INTEL = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


@dataclass(frozen=True)
class System:
    """A toolkit with settings, run as one of the modules of this folder."""

    name: str
    module: str
    kinds: tuple[Kind, ...]
    packages: tuple[str, ...]
    """The packages that have to be installed."""
    arguments: tuple[str, ...] = ()
    compiler: str | None = None
    """The compiler that it calls, which has to be installed."""
    least_equal: float | None = None
    """The share of the tokens of greedy search that have to equal ours; None for a system with
    weights of its own. Near ties, rounding in float32 differs between systems."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def versions(self) -> str:
        """The versions of its packages, as a list in text."""
        return ", ".join(f"{package} {version(package)}" for package in self.packages)

    @property
    def missing(self) -> str | None:
        """What is missing before it can be measured, and how to get it; None if nothing is."""
        for package in self.packages:
            if find_spec(package) is None:
                return f"{package} is not installed: pip install -e '.[bench]'"
        if self.compiler and not shutil.which(self.compiler):
            return f"it needs {self.compiler}, a compiler"
        return None


# Caches of compiled programs are off, so that the first time includes compilation.
_JAX_AFRESH = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
_PYTORCH_AFRESH = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}

OURS = System(
    "t2t_jax",
    "ours",
    ("train", "decode", "translate"),
    ("t2t_jax", "jax"),
    environment=_JAX_AFRESH,
)
_FLAX = System(
    "Flax's WMT example",
    "flax_wmt",
    ("train", "decode"),
    ("flax", "jax"),
    environment=_JAX_AFRESH,
)
_PYTORCH = System("PyTorch", "pytorch", ("train",), ("torch",))
_CTRANSLATE2 = System("CTranslate2", "ctranslate", ("decode", "translate"), ("ctranslate2",))
_PEERS = (
    replace(OURS, name="t2t_jax int8", kinds=("decode", "translate"), arguments=("int8",)),
    _PYTORCH,
    replace(
        _PYTORCH,
        name="PyTorch, compiled",
        arguments=("--compile",),
        compiler="g++",
        environment=_PYTORCH_AFRESH,
    ),
    System(
        "Hugging Face Marian",
        "hugging_face",
        ("train", "decode"),
        ("transformers", "torch"),
        least_equal=0.95,
    ),
    replace(_CTRANSLATE2, name="CTranslate2 float32", arguments=("float32",), least_equal=0.95),
    replace(_CTRANSLATE2, name="CTranslate2 int8", arguments=("int8",), least_equal=0.0),
)


def available_systems(
    kind: Kind, flax_checkout: Path | None = None, mkl_fast_path: Path | None = None
) -> tuple[list[System], list[str]]:
    """The systems that can be measured here, ours first, and why others cannot.

    Args:
      kind: the kind of work.
      flax_checkout: a checkout of github.com/google/flax.
      mkl_fast_path: the library of `build_mkl_fast_path`; systems that use PyTorch are measured
        with it and without it.
    """
    peers: list[System] = [*_PEERS]
    left_out = []
    if flax_checkout:
        peers.insert(0, replace(_FLAX, arguments=(str(_example(flax_checkout)),)))
    elif kind in _FLAX.kinds:
        left_out.append(
            f"{_FLAX.name} is left out: get github.com/google/flax, and name its folder as in "
            "--flax-wmt DIR"
        )
    if mkl_fast_path:
        peers += [_on_fast_path(peer, mkl_fast_path) for peer in peers if "torch" in peer.packages]
    peers = [peer for peer in peers if kind in peer.kinds]
    left_out += [f"{peer.name} is left out: {peer.missing}" for peer in peers if peer.missing]
    return [OURS, *(peer for peer in peers if not peer.missing)], left_out


def _on_fast_path(peer: System, library: Path) -> System:
    name = f"{peer.name} (MKL's fast path)"
    return replace(peer, name=name, environment={**peer.environment, "LD_PRELOAD": str(library)})


def _example(checkout: Path) -> Path:
    folder = checkout / "examples" / "wmt"
    if not (folder / "train.py").is_file():
        raise UserError(
            f"--flax-wmt={checkout} has no examples/wmt/train.py; name a checkout of "
            "github.com/google/flax"
        )
    return folder.resolve()


def build_mkl_fast_path(folder: Path) -> Path:
    """Build a library that, loaded first, has Intel's MKL treat every processor as one of Intel's.

    Otherwise MKL, with which PyTorch multiplies matrices, leaves AVX-512 aside on those of AMD.

    Raises:
      UserError: there is no C compiler, or it fails.
    """
    source, library = folder / "intel.c", folder / "intel.so"
    source.write_text(_INTEL)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"--mkl-fast-path needs a C compiler, cc: {error}") from error
    return library
