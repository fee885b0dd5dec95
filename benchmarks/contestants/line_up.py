"""Who takes part."""

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
class Contestant:
    """A program that does the work, as one of the modules here."""

    name: str
    module: str
    kinds: tuple[Kind, ...]
    packages: tuple[str, ...]
    """What has to be installed."""
    arguments: tuple[str, ...] = ()
    compiler: str | None = None
    """A program that it calls."""
    least_equal: float | None = None
    """Share of the tokens of greedy search that have to be ours; None where its weights are its
    own. At near ties, float32 is not the same everywhere."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def versions(self) -> str:
        """Of its packages."""
        return ", ".join(f"{package} {version(package)}" for package in self.packages)

    @property
    def missing(self) -> str | None:
        """What it lacks, and how to get it."""
        for package in self.packages:
            if find_spec(package) is None:
                return f"{package} is not installed: pip install -e '.[bench]'"
        if self.compiler and not shutil.which(self.compiler):
            return f"it needs {self.compiler}, a compiler"
        return None


# What a process compiled before is not found again, so that the first time is one.
_JAX_AFRESH = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
_PYTORCH_AFRESH = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}

OURS = Contestant(
    "t2t_jax",
    "ours",
    ("train", "decode", "translate"),
    ("t2t_jax", "jax"),
    environment=_JAX_AFRESH,
)
_FLAX = Contestant(
    "Flax's WMT example",
    "flax_wmt",
    ("train", "decode"),
    ("flax", "jax"),
    environment=_JAX_AFRESH,
)
_PYTORCH = Contestant("PyTorch", "pytorch", ("train",), ("torch",))
_CTRANSLATE2 = Contestant("CTranslate2", "ctranslate", ("decode", "translate"), ("ctranslate2",))
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
    Contestant(
        "Hugging Face Marian",
        "hugging_face",
        ("train", "decode"),
        ("transformers", "torch"),
        least_equal=0.95,
    ),
    replace(_CTRANSLATE2, name="CTranslate2 float32", arguments=("float32",), least_equal=0.95),
    replace(_CTRANSLATE2, name="CTranslate2 int8", arguments=("int8",), least_equal=0.0),
)


def line_up(
    kind: Kind, flax_checkout: Path | None = None, mkl_fast_path: Path | None = None
) -> tuple[list[Contestant], list[str]]:
    """Who can take part, ours first, and why others cannot.

    Args:
      kind: of work.
      flax_checkout: of github.com/google/flax.
      mkl_fast_path: from `build_mkl_fast_path`; what uses PyTorch takes part with and without it.
    """
    peers: list[Contestant] = [*_PEERS]
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


def _on_fast_path(peer: Contestant, library: Path) -> Contestant:
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
    """A library that, loaded first, has Intel's MKL treat every processor as one of Intel's.

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
