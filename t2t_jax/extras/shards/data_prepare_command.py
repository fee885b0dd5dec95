"""The command `data prepare`: tokenize the shards of a corpus before training reads them."""

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

import tyro

from t2t_jax.commands.config import command_of_config
from t2t_jax.commands.flag_table import MAY_STAND_ALONE, ConfigFields
from t2t_jax.commands.tables import grid, print_result, show_progress
from t2t_jax.config import Config
from t2t_jax.errors import UserError


@dataclass(frozen=True)
class DataPrepareCommand:
    """Tokenize the shards of a corpus into a directory that training runs share.

    A training run tokenizes missing shards itself. To resume after an interruption, run the same
    command.
    """

    examples: ClassVar = (
        "configs/big.py --data.corpus 'shards:corpora/{split}-*.parquet' --out gs://BUCKET/tokens",
    )
    workdir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")] = tyro.MISSING
    """Config file, such as configs/base.py or configs/grid.py:NAME; the name of a config in the
    package, such as base; or a run directory."""
    out: str = tyro.MISSING
    """Directory or bucket to write tokenized shards and the vocabulary to; pass it to train as
    --data.cache-dir."""
    ray: Annotated[str | None, MAY_STAND_ALONE] = None
    """Address of a Ray cluster whose machines tokenize one shard each at a time, such as
    ray://HOST:10001. Without a value, use RAY_ADDRESS, or else all cores of this machine."""
    fields: ConfigFields = field(default_factory=Config)

    def run(self) -> int:
        """Tokenize the shards, print how many pairs were kept, and return the exit code."""
        from t2t_jax.data.corpus import open_corpus
        from t2t_jax.data.parts import Engine, Parts
        from t2t_jax.extras.shards.pieces import on_ray
        from t2t_jax.run.preparing import training_parts
        from t2t_jax.tasks import task_of

        config = self.fields.replace({"data.cache_dir": self.out})
        corpus = open_corpus(config.data)
        task = task_of(corpus.name, corpus.task)
        shards = corpus.parts["train"].shards if "train" in corpus.parts else ()
        if not shards:
            raise UserError(
                f"data.corpus={corpus.name} has no shards to train on; name the shards by "
                "shards:PATTERN, or train on the corpus without this command"
            )
        vocabulary = task.vocabulary(config, corpus)
        engine: Engine = map if self.ray is None else on_ray(self.ray)

        def with_progress(make: Callable[..., object], jobs: Iterable[object]) -> Iterator[object]:
            pending = [*jobs]
            return show_progress(engine(make, pending), "shards", len(pending))

        pieces = training_parts(task, config, corpus, vocabulary, with_progress)
        assert isinstance(pieces, Parts)  # because the corpus has shards
        statistics = pieces.content
        table = grid("shards", "pieces", "read", "kept", "source tokens", "target tokens")
        counts = len(shards), len(pieces), statistics.num_pairs_read, statistics.num_examples
        tokens = statistics.source.total, statistics.target.total
        table.add_row(*(f"{figure:,}" for figure in (*counts, *tokens)))
        print_result(table)
        for reason, count in statistics.skipped.items():
            print(f"left out as {reason.replace('_', ' ')}: {count:,}")
        print(f"train on it with --data.cache-dir {shlex.quote(self.out)}")
        return 0


data_prepare_command = partial(command_of_config, DataPrepareCommand)
"""Parse the command line of `data prepare` into its command; see `entry_command`."""
