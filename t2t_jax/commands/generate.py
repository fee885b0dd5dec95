"""The command `generate`: continue text with a language model."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from t2t_jax.commands.model_flags import RunFlags, load_for
from t2t_jax.commands.streams import open_input, open_output
from t2t_jax.errors import UserError

if TYPE_CHECKING:
    from t2t_jax.decoding.translator import Translator


@dataclass(frozen=True)
class GenerateCommand(RunFlags):
    """Continue text with a language model, trained with data.task=language_modelling.

    For each prompt, the command writes one line: the prompt and its continuation.
    """

    examples: ClassVar = ("runs/lm --prompt 'Once upon a time' --max-tokens 100",)
    prompt: tuple[str, ...] = ()
    """Texts to continue; without --prompt, each line of the input is a prompt. "" starts a new
    text."""
    input: Path | None = None
    """File of prompts, one per line, plain or .gz; None is the standard input."""
    output: Path | None = None
    """Output file, written atomically; None is the standard output."""
    max_tokens: int = 64
    """Maximum number of subwords to generate; a text may end earlier."""
    stop: tuple[str, ...] = ()
    """Stop strings: the text ends before the first stop string."""
    temperature: float = 0.8
    """Sampling temperature; 0 selects the most probable subwords."""
    top_k: int = 0
    """Sample only from the k most probable subwords; 0 means all."""
    top_p: float = 0.95
    """Sample only from the smallest set of subwords with at least this probability (nucleus)."""
    beam_size: int = 1
    """Beam size at temperature 0."""
    min_length: int = 0
    """Minimum number of subwords of a continuation."""
    no_repeat_ngram_size: int = 0
    """Never generate an n-gram of this many subwords twice; 0 allows repetition."""
    seed: int = 0
    """Random seed for sampling."""

    def run(self) -> int:
        """Write a line for each prompt, and return the exit code."""
        if self.prompt and self.input is not None:
            raise UserError("give prompts with --prompt or in the file of --input, not with both")
        with open_output(self.output) as file:
            translator = load_for("generate", [self.workdir], self)
            num_prompts = 0
            with nullcontext([[*self.prompt]]) if self.prompt else open_input(self.input) as chunks:
                for prompts in chunks:
                    file.writelines(self._lines(translator, prompts, num_prompts + 1))
                    file.flush()
                    num_prompts += len(prompts)
        return 0

    def _lines(self, translator: "Translator", prompts: list[str], first_line: int) -> list[bytes]:
        from t2t_jax.tasks.language_modelling import generate

        decoding_names = "temperature", "top_k", "top_p", "beam_size", "min_length"
        names = "max_tokens", "stop", "seed", *decoding_names, "no_repeat_ngram_size"
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        texts = generate(translator, prompts, first_line=first_line, **settings)
        lines = (prompt.rstrip() + text for prompt, text in zip(prompts, texts, strict=True))
        return [f"{' '.join(text.splitlines())}\n".encode() for text in lines]
