"""The command line of `train.py` and `eval.py`: flags from the config, errors in one line.

JAX and the model are imported once the flags are known to be good, so that `--help` and a misspelt
flag answer at once.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, NoReturn, Union

import absl.logging
import platformdirs
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from t2t_jax.config import Config, DecodingConfig, load_config, walk
from t2t_jax.errors import UserError, did_you_mean
from t2t_jax.parallel.host_memory import keep_freed_memory

if TYPE_CHECKING:
    from t2t_jax.decoding.translator import Hypothesis, Translator

_LINES_AT_ONCE = 10_000


@dataclass(frozen=True)
class Train:
    """Train a Transformer, or go on with a run that was stopped."""

    workdir: Path = tyro.MISSING
    """Directory of the run."""
    config: str | None = None
    """Config file: configs/base.py, or configs/grid.py:NAME. A run goes on without one."""
    fields: Annotated[Config, tyro.conf.arg(name=""), tyro.conf.FlagConversionOff] = field(
        default_factory=Config
    )


@dataclass(frozen=True)
class _Decode:
    """Which model decodes, and how."""

    workdir: Path = tyro.MISSING
    """Directory of the run."""
    average: int = 1
    """How many of the last checkpoints to average (section 6.1; base: 5, big: 20)."""
    step: int | Literal["best"] | None = None
    """Step of the last of them, or best for the best dev score; None is the newest."""
    seed: int = 0
    """Seed of sampling (temperature above 0)."""
    decoding: Annotated[DecodingConfig, tyro.conf.arg(name="")] = field(
        default_factory=DecodingConfig
    )

    def load(self) -> "Translator":
        """The translator of the run."""
        from t2t_jax.loading import load

        return load(self.workdir, average=self.average, step=self.step)

    @property
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of `Translator.translate`."""
        return {"seed": self.seed, **dataclasses.asdict(self.decoding)}


@dataclass(frozen=True)
class Bleu(_Decode):
    """Score a model on a split: BLEU, chrF, loss and perplexity."""

    split: str = "test"
    """Split of the corpus: train, dev or test."""
    corpus: str | None = None
    """Corpus to score on, as data.corpus names it; None is the one trained on."""
    num_sentences: int | None = None
    """Sentences to translate, from the first on; None is all. The loss is over all of them."""
    json: bool = False
    """Print one JSON object instead of a table."""
    output: Path | None = None
    """File for the translations, one a line."""
    cache_dir: str | None = None
    """Another place for tokenised corpora than the run's data.cache_dir."""

    def run(self) -> int:
        """Evaluate and print."""
        from t2t_jax.data.corpus import open_corpus
        from t2t_jax.evaluation.evaluate import evaluate

        translator = self.load()
        if self.cache_dir is not None:
            translator.config = translator.config.replace({"data.cache_dir": self.cache_dir})
        data = translator.config.data
        corpus = open_corpus(dataclasses.replace(data, corpus=self.corpus or data.corpus))
        with _writing(self.output) if self.output else contextlib.nullcontext() as file:
            evaluation = evaluate(
                translator, corpus, self.split, num_sentences=self.num_sentences, **self.settings
            )
            if file:
                file.writelines(f"{line}\n".encode() for line in evaluation.hypotheses)
        summary = {
            "corpus": corpus.name,
            **evaluation.summary(),
            "checkpoints": list(translator.steps),
            "decoding": self.settings,
        }
        if self.json:
            print(_json(summary))
        else:
            Console(width=100, markup=False, highlight=False).print(_table(summary))
        return 0


@dataclass(frozen=True)
class Translate(_Decode):
    """Translate UTF-8 text: each line of input gives one line of output, in order.

    Only a line feed ends a line. With --num-best or --scores the output has lines of
    `index ||| translation ||| log-probability ||| score`, where index counts input lines from 0.
    """

    input: Path | None = None
    """File to translate; None is the standard input."""
    output: Path | None = None
    """File to write, all of it or nothing; None is the standard output."""
    num_best: int = 1
    """Translations of each line, best first; at most the beam size."""
    scores: bool = False
    """Write the format with scores for a single translation too."""

    def run(self) -> int:
        """Translate a few thousand lines at a time, so that memory is bounded."""
        lines = _open(self.input, "rb") if self.input else sys.stdin.buffer
        # Somebody who types lines wants each one answered.
        at_once = 1 if lines.isatty() else _LINES_AT_ONCE
        with lines, _writing(self.output) as file:
            translator = self.load()
            done = 0
            while chunk := list(islice(lines, at_once)):
                texts = _decode_lines(chunk, first_line=done + 1)
                found = translator.nbest(texts, self.num_best, first_line=done + 1, **self.settings)
                written = self._format(found, first_index=done)
                file.writelines(f"{line}\n".encode() for line in written)
                file.flush()
                done += len(chunk)
        return 0

    def _format(self, found: list[list["Hypothesis"]], first_index: int) -> Iterator[str]:
        for index, hypotheses in enumerate(found, first_index):
            for best in hypotheses:
                if self.scores or self.num_best > 1:
                    yield f"{index} ||| {best.text} ||| {best.log_prob:.4f} ||| {best.score:.4f}"
                else:
                    yield best.text


COMMANDS: dict[str, type[Bleu] | type[Translate]] = {"bleu": Bleu, "translate": Translate}
"""The commands of `eval.py`."""


def run(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a program on its command line and exit with the code it returns.

    A `UserError`, or a file that the system refuses, becomes one line on stderr and exit code 2.
    Ctrl-C and a reader that goes away (`| head`) end the program quietly, with the exit codes that
    shells give them.
    """
    _prepare_process()
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except UserError as error:
        _refuse(str(error))
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + 13
    except OSError as error:
        _refuse(
            f"{error.filename or 'a file'}: {error.strerror or error}; check place and permission"
        )
    except KeyboardInterrupt:
        code = 128 + 2
    sys.exit(code)


def _prepare_process() -> None:
    """Set what has to be set before JAX is imported."""
    # What one run compiles, the next one finds.
    compiled = platformdirs.user_cache_path("t2t_jax") / "compiled"
    with contextlib.suppress(OSError):  # then nothing is kept
        compiled.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(compiled))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    absl.logging.set_verbosity(absl.logging.ERROR)  # Orbax warns of everything it does
    if isinstance(sys.stdout, io.TextIOWrapper):  # a sample translation must not end a training
        sys.stdout.reconfigure(errors="backslashreplace")
    keep_freed_memory()


def _refuse(message: str) -> NoReturn:
    """Say why in one line, and end the process.

    At once: threads of a restore that failed would go on to complain while Python shuts down.
    """
    print("error:", " ".join(message.split()), file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(2)


def train_command(arguments: Sequence[str]) -> Train:
    """What a command line of `train.py` asks for.

    Fields that no flag names are those of the config file, or else of the run in the directory.

    Raises:
      UserError: a flag or its value is refused, or there is no config.
    """
    _check_flags(arguments, [*_names(Train), *(path for path, _, _ in walk(Config()))])
    config_file, workdir = _peek(arguments)
    base = load_config(config_file) if config_file else _stored_config(workdir)
    defaults = Train(fields=base or Config())
    command = _parse(Train, arguments, prog="train.py", default=defaults)
    if base is None:
        raise UserError(
            f"{command.workdir} holds no run to go on with; name a config, as in "
            "--config configs/base.py"
        )
    return command


def eval_command(arguments: Sequence[str]) -> Bleu | Translate:
    """What a command line of `eval.py` asks for.

    Decoding settings that no flag names are those of the run.

    Raises:
      UserError: a flag or its value is refused.
    """
    name = next(iter(arguments), "")
    if name in COMMANDS:
        _check_flags(arguments, [*_names(COMMANDS[name]), *_names(DecodingConfig)])
    elif name not in ("-h", "--help"):
        raise UserError(f"eval.py takes a command first ({', '.join(COMMANDS)}), not {name!r}")
    _, workdir = _peek(arguments)
    decoding = (_stored_config(workdir) or Config()).decoding
    commands: Any = Union[  # noqa: UP007  (made of values, which | cannot join)
        tuple(
            Annotated[
                command,
                tyro.conf.subcommand(name, default=command(decoding=decoding), prefix_name=False),
            ]
            for name, command in COMMANDS.items()
        )
    ]
    return _parse(commands, arguments, prog="eval.py")


def _names(command: type) -> list[str]:
    return [field.name for field in dataclasses.fields(command)]


def _check_flags(arguments: Sequence[str], known: list[str]) -> None:
    flags = [f"--{name.replace('_', '-')}" for name in [*known, "help"]]
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag.startswith("--") and (dashed := flag.replace("_", "-")) not in flags:
            hint = did_you_mean(dashed, flags, "see --help for all flags")
            raise UserError(f"unknown flag {flag}; {hint}")


def _peek(arguments: Sequence[str]) -> tuple[str | None, Path | None]:
    """The values of `--config` and `--workdir`, which hold the defaults of all other flags."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", nargs="?")
    parser.add_argument("--workdir", nargs="?", type=Path)
    named, _ = parser.parse_known_args(arguments)
    return named.config, named.workdir


def _stored_config(workdir: Path | None) -> Config | None:
    if workdir is None or not workdir.is_dir():
        return None
    from t2t_jax.workdir import is_run, read_config

    return read_config(workdir) if is_run(workdir) else None


def _parse(command: Any, arguments: Sequence[str], **settings: Any) -> Any:
    """`tyro.cli`, with its boxes of red text turned into a `UserError`."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(
                command, args=arguments, config=(tyro.conf.FlagCreatePairsOff,), **settings
            )
    except SystemExit as end:
        if not end.code:  # --help
            raise
        raise _refusal(end, printed.getvalue()) from end


def _refusal(end: BaseException, printed: str) -> UserError:
    """Why the command line was refused: by the config itself, or else by tyro's own words."""
    cause = end.__context__
    while cause:
        if isinstance(cause, UserError):
            return cause
        cause = cause.__context__
    rows = [row.strip("│ ") for row in Text.from_ansi(printed).plain.splitlines()[1:]]
    message = takewhile(lambda row: row and not row.startswith("─"), rows)
    return UserError(f"{' '.join(message).rstrip('.')}; see --help")


@contextlib.contextmanager
def _writing(path: Path | None) -> Iterator[BinaryIO]:
    """The standard output, or a file that takes its name once it is complete."""
    if path is None:
        yield sys.stdout.buffer
        return
    path = path.resolve()
    if path.exists() and not path.is_file():  # a device or a pipe; nothing to put in its place
        with _open(path, "wb") as file:
            yield file
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _open(unfinished, "wb") as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _open(path: Path, mode: Literal["rb", "wb"]) -> BinaryIO:
    try:
        return path.open(mode)
    except OSError as error:
        raise UserError(f"cannot open {path}: {error.strerror}") from error


def _decode_lines(lines: list[bytes], first_line: int) -> list[str]:
    texts = []
    for number, line in enumerate(lines, first_line):
        try:
            texts.append(line.removesuffix(b"\n").decode())
        except UnicodeDecodeError as error:
            raise UserError(
                f"line {number} of the input is not UTF-8 (byte {error.start + 1} of the line); "
                "convert it to UTF-8"
            ) from error
    return texts


def _json(summary: Mapping[str, Any]) -> str:
    """The figures of an evaluation as one line. JSON has neither NaN nor infinity: null is both."""
    unknown = {
        name: None
        for name, value in summary.items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    return json.dumps({**summary, **unknown}, allow_nan=False)


def _table(summary: Mapping[str, Any]) -> Table:
    """The figures of an evaluation, each with its definition."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    per_token = f"nats per subword, mean of {summary['target_tokens']:,}"
    smoothed = f"label-smoothed cross-entropy, {per_token}"
    table.add_row("BLEU", f"{summary['bleu']:.2f}", summary["bleu_signature"])
    table.add_row("chrF", f"{summary['chrf']:.2f}", summary["chrf_signature"])
    table.add_row("loss", f"{summary['loss']:.4f}", smoothed)
    table.add_row("NLL", f"{summary['nll']:.4f}", f"negative log-likelihood, {per_token}")
    table.add_row("perplexity", f"{summary['perplexity']:.3f}", "exp(NLL), per subword")
    table.add_row(
        "sentences", f"{summary['num_sentences']:,}", f"{summary['corpus']} {summary['split']}"
    )
    steps = ", ".join(f"{step:,}" for step in summary["checkpoints"])
    table.add_row("averaged", f"{len(summary['checkpoints'])}", f"checkpoints of step {steps}")
    settings = " ".join(f"{name}={value}" for name, value in summary["decoding"].items())
    table.add_row("decoding", "", settings)
    table.add_row("seconds", f"{summary['seconds']:.1f}", "the whole evaluation")
    return table
