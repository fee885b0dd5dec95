"""Train on data that Python makes: dates in digits, translated to words, with no files.

    python examples/own_data.py --workdir runs/own_data

The train split makes each pair when it is read. Its `fingerprint` says which pairs it has, so a
resumed run reads none of them again. Dev is a list of pairs. After a minute on a CPU, the model
writes nearly all dates of the test split correctly. The same command resumes a stopped run.
"""

import random
from calendar import month_name
from dataclasses import dataclass
from datetime import date

import tyro

import t2t_jax
from t2t_jax import Config

FIRST, LAST = date(1900, 1, 1).toordinal(), date(2099, 12, 31).toordinal()


@dataclass(frozen=True)
class Dates:
    """Pairs such as {"digits": "2017-06-12", "words": "12 June of the year 2017"}."""

    seed: int
    size: int

    @property
    def fingerprint(self):
        """Return a text that differs for other pairs."""
        return repr(self)

    def __len__(self):
        """Return the number of pairs."""
        return self.size

    def __getitem__(self, index):
        """Return the pair of an index, which is the same each time."""
        number = random.Random(f"{self.seed} {index}").randint(FIRST, LAST)
        day = date.fromordinal(number)
        words = f"{day.day} {month_name[day.month]} of the year {day.year}"
        return {"digits": day.isoformat(), "words": words}


def data():
    """Return the splits: a sequence of dicts, a list of pairs, and another sequence."""
    dev = [(row["digits"], row["words"]) for row in map(Dates(1, 100).__getitem__, range(100))]
    return {"train": Dates(0, 10_000), "dev": dev, "test": Dates(2, 200)}


def config(num_train_steps):
    """Return the config of a small model; its languages are the fields of a dict of `Dates`."""
    model = {"d_model": 64, "num_heads": 4, "d_ff": 128, "dropout_rate": 0.0}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    languages = {"source_language": "digits", "target_language": "words"}
    sizes = {"vocab_size": 64, "max_length": 32, "batching": "pack"}
    tokens = dict.fromkeys(("source_tokens_per_step", "target_tokens_per_step"), 2048)
    training = {"num_train_steps": num_train_steps, "warmup_steps": 100}
    return Config().replace(
        {f"model.{name}": value for name, value in (model | layers).items()}
        | {f"data.{name}": value for name, value in (languages | sizes | tokens).items()}
        | {f"training.{name}": value for name, value in training.items()}
        | {"evaluation.every_steps": 100, "checkpoint.average": 1}
    )


def main(workdir: str = "runs/own_data", num_train_steps: int = 400):
    """Train the model, and return the share of the test dates that it writes correctly."""
    splits = data()
    translator = t2t_jax.train(config(num_train_steps), workdir, data=splits).load()
    result = t2t_jax.evaluate(translator, splits, split="test")
    pairs = list(zip(result.sources, result.hypotheses, result.references, strict=True))
    for source, hypothesis, _ in pairs[:5]:
        print(f"{source}   {hypothesis}")
    accuracy = sum(hypothesis == reference for _, hypothesis, reference in pairs) / len(pairs)
    print(f"{accuracy:.1%} of {len(pairs)} dates are correct")
    return accuracy


if __name__ == "__main__":
    tyro.cli(main)
