"""The command that says whether what a network computes depends on its width or depth."""

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from t2t_jax.commands.config import command_of_config
from t2t_jax.commands.pictures import check_format, write_picture
from t2t_jax.commands.streams import check_heard
from t2t_jax.commands.tables import grid, print_line, print_result
from t2t_jax.config import Config
from t2t_jax.config.model import Parametrisation
from t2t_jax.system.atomic_file import check_writable

if TYPE_CHECKING:
    from rich.table import Table

    from t2t_jax.inspect.coordinates import Coordinates

_LOGITS = (
    "Logits at the start shrink with the root of the width, and at first so do their changes, of "
    "which unlearning the first logits is a part: that is right."
)


@dataclass(frozen=True)
class CoordinatesCommand:
    """Say whether activations, and their changes in training, grow with the width of a network.

    Networks of several widths learn a few random tokens for a few steps. Where all changes but
    those of the logits are flat, as with --parametrisation mup, one learning rate fits all widths.
    """

    examples: ClassVar = ("base --parametrisation standard mup --figure widths.svg",)
    common: ClassVar = ("workdir", "widths", "depths", "parametrisation", "figure")
    workdir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")] = tyro.MISSING
    """Config file, as configs/base.py; the name of one that comes with the package, as base; or the
    directory of a run. No corpus is read."""
    widths: tuple[int, ...] = (64, 128, 256, 512)
    """Values of model.d_model; the number of heads and d_ff go in proportion. One value beside
    --depths is the width of all networks."""
    depths: tuple[int, ...] = ()
    """Numbers of layers of each stack; they are compared in place of widths."""
    steps: int = 5
    """Number of steps, at a tenth of the largest learning rate of the config."""
    seeds: int = 4
    """Number of networks of each size, with different first values."""
    parametrisation: tuple[Parametrisation, ...] = ()
    """Values of model.parametrisation; each has a table. None is that of the config."""
    figure: Path | None = None
    """File for a picture; it ends in .svg or .png, and shows all tables."""
    fields: Annotated[Config, tyro.conf.arg(name=""), tyro.conf.FlagConversionOff] = field(
        default_factory=Config
    )

    def run(self) -> int:
        """Measure, print a table for each parametrisation, draw, and return the exit code."""
        if self.figure is None:
            check_heard()
        else:
            check_format("figure", self.figure)
            check_writable(self.figure.parent)
            from t2t_jax.inspect.figures.coordinates import curves
        from t2t_jax.inspect.coordinates import coordinates, of_width

        config, name, values = self.fields, "width", self.widths
        if self.depths:
            if len(self.widths) == 1:
                config = of_width(config, self.widths[0])
            name, values = "depth", self.depths
        chosen = self.parametrisation or (config.model.parametrisation,)
        # All of them before the first is measured, as a later one may be refused.
        configs = {one: config.replace({"model.parametrisation": one}) for one in chosen}
        found: dict[str, Coordinates] = {}
        for one, changed in configs.items():
            found[one] = coordinates(changed, name, values, steps=self.steps, seeds=self.seeds)
            print_line(f"{one}, root mean squares after {self.steps} steps:")
            print_result(_table(found[one]))
            if one != "standard" and name == "width":
                print_line(_LOGITS)
        if self.figure is not None:
            self.figure.parent.mkdir(parents=True, exist_ok=True)
            write_picture(self.figure, curves(found))
        return 0


def _table(found: "Coordinates") -> "Table":
    """Return a table of the changes by width or depth, with the exponents of their growth."""
    from t2t_jax.inspect.coordinates import growth

    heads = [f"{found.name} {value}" for value in found.values]
    table = grid("change of", *heads, "exponent", "verdict", "at the start")
    for part, sizes in found.change.items():
        change, start = (growth(found.values, x) for x in (sizes, found.start[part]))
        table.add_row(
            part,
            *(f"{size:.3g}" for size in sizes.mean(1)),
            f"{change.exponent:+.2f}"
            + (f" ± {change.error:.2f}" if math.isfinite(change.error) else ""),
            change.verdict,
            f"{start.exponent:+.2f}",
        )
    return table


coordinates_command = partial(command_of_config, CoordinatesCommand)
"""The function that returns the command that a command line asks for; see `entry_command`."""
