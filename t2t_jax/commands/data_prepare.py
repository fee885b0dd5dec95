"""The command that tokenises the shards of a corpus before trainings read them."""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

import tyro

from t2t_jax.commands.config import command_of_config
from t2t_jax.commands.tables import grid, print_result
from t2t_jax.config import Config
from t2t_jax.errors import UserError


@dataclass(frozen=True)
class DataPrepareCommand:
    """Tokenise the shards of a corpus into a place that trainings share.

    A training makes what is missing there, too. After an interruption, the same command goes on.
    """

    examples: ClassVar = (
        "configs/big.py --data.corpus 'shards:corpora/{split}-*.parquet' --out gs://BUCKET/tokens",
    )
    workdir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")] = tyro.MISSING
    """Config file, as configs/base.py or configs/grid.py:NAME; the name of one that comes with the
    package, as base; or the directory of a run, whose config it is."""
    out: str = tyro.MISSING
    """Folder or bucket for the pieces and the vocabulary, which --data.cache_dir of a training
    names."""
    fields: Annotated[Config, tyro.conf.arg(name=""), tyro.conf.FlagConversionOff] = field(
        default_factory=Config
    )

    def run(self) -> int:
        """Tokenise the shards, print what was kept, and return the exit code."""
        from t2t_jax.data.corpus import open_corpus
        from t2t_jax.data.shards.preparing import open_shards
        from t2t_jax.tasks import task_of

        config = self.fields.replace({"data.cache_dir": self.out})
        corpus = open_corpus(config.data)
        task = task_of(corpus.name, corpus.task)
        shards = corpus.parts["train"].shards if "train" in corpus.parts else ()
        if not shards:
            raise UserError(
                f"data.corpus={corpus.name} has no shards to train on; name them by "
                "shards:PATTERN, or train on it as it is"
            )
        vocabulary = task.vocabulary(config, corpus)
        text = task.train_text(config, vocabulary)
        assert text is not None  # else the corpus would have no shards
        pieces = open_shards(config.data, shards, vocabulary, text)
        content = pieces.content
        table = grid("shards", "pieces", "read", "kept", "source tokens", "target tokens")
        figures = (
            len(shards),
            len(pieces),
            content.num_pairs_read,
            content.num_examples,
            content.source.total,
            content.target.total,
        )
        table.add_row(*(f"{figure:,}" for figure in figures))
        print_result(table)
        for reason, count in content.skipped.items():
            print(f"left out as {reason.replace('_', ' ')}: {count:,}")
        print(f"train on it with --data.cache-dir {self.out}")
        return 0


data_prepare_command = partial(command_of_config, DataPrepareCommand)
"""The function that returns the command that a command line asks for; see `entry_command`."""
