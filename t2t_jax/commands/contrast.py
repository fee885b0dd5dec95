"""The command of contrastive tests."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import tyro

from t2t_jax.commands.model_flags import ModelFlags
from t2t_jax.commands.tables import grid, print_result


@dataclass(frozen=True)
class ContrastCommand(ModelFlags):
    """Count how often a right translation is more probable than wrong ones, by kind.

    It is done with the context of each sentence, without, and with the context of another one. A
    model that uses contexts is right more often in the first way.
    """

    command: ClassVar = "contrast"
    input: Path = tyro.MISSING
    """File with an object of JSON on each line: source, target, wrong (a list of translations),
    and where there are any, context (a list of pairs of sentences, the last one last) and kind."""

    def run(self) -> int:
        """Print a table with a row for each kind, and return the exit code."""
        import numpy as np

        from t2t_jax.tasks.measures.contrast import contrasts, exact_p, read_contrasts

        translator, items = self.load(), read_contrasts(self.input)
        found = contrasts(translator, items)
        kinds = np.array([one.kind for one in items])
        every = np.ones(len(items), bool)
        rows = {kind: kinds == kind for kind in sorted(set(kinds.tolist()))}
        if len(rows) > 1:
            rows["all kinds"] = every
        table = grid("kind", "items", "in context", "alone", "in another's", "p")
        for name, chosen in rows.items():
            own = [way[chosen] for way in found]
            shares = [f"{100 * way.mean():.1f}%" for way in own]
            table.add_row(name, f"{chosen.sum():,}", *shares, f"{exact_p(own[0], own[1]):.4f}")
        print_result(table)
        print_result("p: McNemar's exact test of in context against alone")
        return 0
