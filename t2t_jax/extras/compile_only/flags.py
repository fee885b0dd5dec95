"""Flags of `train` that compile the training step instead of training."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from t2t_jax.commands.flag_table import MAY_STAND_ALONE
from t2t_jax.config import Config
from t2t_jax.errors import UserError
from t2t_jax.plugins import TrainingFlags


@dataclass(frozen=True)
class CompileFlags(TrainingFlags):
    """Flags for the devices to compile for, and for a file with the compiled program's text."""

    instead: ClassVar = ("compile_only", "write_program")
    common: ClassVar = ("compile_only",)
    examples: ClassVar = ("--config configs/big.py --compile-only h100:8",)
    compile_only: Annotated[str | None, MAY_STAND_ALONE] = None
    """Compile the training step without training; print whether it fits into memory and its
    estimated speed. The value names devices that may be absent: TPUs such as v5e:4x4, or GPUs such
    as h200:8 or h100:2x8. Without a value, use the devices of this machine. RUN is not needed."""
    write_program: Path | None = None
    """With --compile-only, the file to write the text of the compiled program to."""

    def run(self, config: Config) -> int:
        """Print reports on compiled steps; return 1 if the training step exceeds memory, else 0."""
        if self.compile_only is None:
            raise UserError("--write-program needs --compile-only; add it, or omit --write-program")
        from t2t_jax.extras.compile_only.compile import compile_ahead, compile_search
        from t2t_jax.extras.compile_only.report import format_report, format_search
        from t2t_jax.extras.compile_only.topologies import devices_of

        devices = devices_of(self.compile_only)
        report = compile_ahead(config, devices, self.write_program)
        print(*format_report(report), sep="\n", flush=True)
        if report.fits is False:
            return 1
        if config.model.decodes:
            print("", *format_search(compile_search(config, devices)), sep="\n")
        return 0
