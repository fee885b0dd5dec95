"""The systems that can be compared, and those of them that are installed here."""

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from t2t_jax.errors import UserError

Kind = Literal["train", "decode", "translate"]
Precision = Literal["float32", "bfloat16", "int8"]

_INTEL = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout on the path
        return str(import_module(package).__version__)


@dataclass(frozen=True)
class System:
    """A toolkit with settings, run as one of the modules of this folder.

    The module is run with the precision and the arguments.
    """

    name: str
    module: str
    kinds: tuple[Kind, ...]
    packages: tuple[str, ...]
    """The packages that have to be installed."""
    precision: Precision = "float32"
    """The precision of the system's matrix products."""
    arguments: tuple[str, ...] = ()
    obstacle: Callable[["System"], str | None] = lambda _: None
    """A function that returns what else is missing, once the packages are installed."""
    least_equal: float | None = None
    """The share of the tokens of greedy search that have to equal ours in float32; None for a
    system with weights of its own. Near ties, rounding differs between systems, and in a reduced
    precision by so much that any share is taken."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Return whether the system is t2t_jax, in any precision."""
        return self.module == "ours"

    @property
    def versions(self) -> str:
        """Return the versions of its packages, as a list in text."""
        return ", ".join(f"{package} {_version(package)}" for package in self.packages)

    @property
    def missing(self) -> str | None:
        """Return what the measurement lacks, and how to get it; None if nothing is missing."""
        for package in self.packages:
            if find_spec(package) is None:
                return f"{package} is not installed: pip install -e '.[train,bench]'"
        return self.obstacle(self)


def _no_compiler(_: System) -> str | None:
    return None if shutil.which("g++") else "it needs g++, a compiler"


def _no_checkout(system: System) -> str | None:
    if system.arguments:
        return None
    return "get github.com/google/flax, and name its folder as in --flax-wmt DIR"


def _no_such_type(system: System) -> str | None:
    import ctranslate2

    types = ctranslate2.get_supported_compute_types("cpu")
    if system.precision in types:
        return None
    return f"its compute types on this processor are {', '.join(sorted(types))}"


# Caches of compiled programs are off, so that the first time includes compilation.
_JAX_AFRESH = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
_PYTORCH_AFRESH = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}

OURS = System(
    "t2t_jax", "ours", ("train", "decode", "translate"), ("t2t_jax", "jax"), environment=_JAX_AFRESH
)
_FLAX = System(
    "Flax's WMT example",
    "flax_wmt",
    ("train", "decode"),
    ("flax", "jax"),
    obstacle=_no_checkout,
    environment=_JAX_AFRESH,
)
_PYTORCH = System("PyTorch", "pytorch", ("train",), ("torch",))
_COMPILED = replace(
    _PYTORCH,
    name="PyTorch, compiled",
    arguments=("--compile",),
    obstacle=_no_compiler,
    environment=_PYTORCH_AFRESH,
)
_MARIAN = System(
    "Hugging Face Marian",
    "hugging_face",
    ("train", "decode"),
    ("transformers", "torch"),
    least_equal=0.95,
)
_CTRANSLATE2 = System(
    "CTranslate2 float32",
    "ctranslate",
    ("decode", "translate"),
    ("ctranslate2",),
    obstacle=_no_such_type,
    least_equal=0.95,
)
_SYSTEMS = (
    OURS,
    replace(
        OURS,
        name="t2t_jax bfloat16",
        kinds=("train", "decode"),
        precision="bfloat16",
        least_equal=0.0,
    ),
    replace(
        OURS, name="t2t_jax int8", kinds=("decode", "translate"), precision="int8", least_equal=0.0
    ),
    _FLAX,
    _PYTORCH,
    _COMPILED,
    replace(_PYTORCH, name="PyTorch bfloat16", precision="bfloat16"),
    replace(_COMPILED, name="PyTorch bfloat16, compiled", precision="bfloat16"),
    _MARIAN,
    _CTRANSLATE2,
    replace(_CTRANSLATE2, name="CTranslate2 bfloat16", precision="bfloat16", least_equal=0.0),
    replace(_CTRANSLATE2, name="CTranslate2 int8", precision="int8", least_equal=0.0),
)


def available_systems(
    kind: Kind,
    names: Sequence[str] = (),
    flax_checkout: Path | None = None,
    mkl_fast_path: Path | None = None,
) -> tuple[list[System], list[str]]:
    """Return the systems that can be measured here, ours in float32 first, and why others cannot.

    Args:
      kind: the kind of work.
      names: parts of the names of the systems that are wanted, in upper or lower case; none for
        all. t2t_jax takes part beside them, in float32 and in their precisions.
      flax_checkout: a checkout of github.com/google/flax.
      mkl_fast_path: the library of `build_mkl_fast_path`; systems that use PyTorch in float32 are
        measured with it and without it.

    Raises:
      UserError: no system has one of `names` in its name, or the checkout is no checkout of Flax.
    """
    systems = [one for one in _SYSTEMS if kind in one.kinds]
    if flax_checkout:
        arguments = (str(_example(flax_checkout)),)
        systems = [replace(one, arguments=arguments) if one is _FLAX else one for one in systems]
    if mkl_fast_path:
        # In bfloat16 PyTorch uses oneDNN, which does not check the maker of the processor.
        float32 = [one for one in systems if "torch" in one.packages and one.precision == "float32"]
        systems += [_on_fast_path(one, mkl_fast_path) for one in float32]
    wanted = _wanted(systems, names)
    left_out = [f"{one.name} is left out: {one.missing}" for one in wanted if one.missing]
    return [one for one in wanted if not one.missing], left_out


def _wanted(systems: list[System], names: Sequence[str]) -> list[System]:
    if not names:
        return systems
    named: list[System] = []
    for name in names:
        found = [one for one in systems if name.casefold() in one.name.casefold()]
        if not found:
            known = "; ".join(one.name for one in systems)
            raise UserError(f"--systems {name!r} is in the name of no system; there are {known}")
        named += found
    precisions = {OURS.precision, *(one.precision for one in named)}
    return [one for one in systems if one in named or (one.is_ours and one.precision in precisions)]


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

    Otherwise MKL, with which PyTorch multiplies matrices, does not use AVX-512 on AMD's processors.

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
