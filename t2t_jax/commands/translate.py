"""The command that translates text."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from t2t_jax.commands.beside import FilesBeside, head_of
from t2t_jax.commands.model_flags import DecodingFlags, LanguageFlags
from t2t_jax.commands.streams import reading, writing
from t2t_jax.data.lines import read_lines
from t2t_jax.errors import UserError
from t2t_jax.system.atomic_file import write_whole

if TYPE_CHECKING:
    from t2t_jax.data.terms import Glossary
    from t2t_jax.decoding.translations import Hypothesis
    from t2t_jax.decoding.translator import Translator


@dataclass(frozen=True)
class TranslateCommand(LanguageFlags, DecodingFlags):
    """Translate UTF-8 text: each line of input gives one line of output, in order.

    Only a line feed ends a line. A line that is too long is split, or refused: in a file, before
    anything is written. With --num-best or --scores the output has lines of
    `index ||| translation ||| log-probability ||| score`, where index counts input lines from 0.
    """

    examples: ClassVar = (
        "runs/base --input test.en --output test.de",
        "runs/base runs/other --num-best 4 --beam-size 8",
    )
    command: ClassVar = "translate"
    format: Literal["text", "html", "document"] = "text"
    """What is translated: lines of text; lines of html, whose tags are put at the translated words;
    or a document as a whole, whose suffix says its kind: txt, md, html, srt, vtt, docx, pptx, odt,
    odp, ods, epub."""
    glossary: Path | None = None
    """File of terms that translations use: in each line a source term, a tab and a target term."""
    input: Path | None = None
    """File to translate, plain or .gz; None is the standard input."""
    output: Path | None = None
    """File to write, all of it or nothing; None is the standard output."""
    num_best: int = 1
    """Number of translations of each line, best first; at most the beam size."""
    scores: bool = False
    """Write the format with scores for a single translation too."""
    prefix: str | None = None
    """Text with which every translation begins."""
    prefixes: Path | None = None
    """File with a line for each line of input: the text with which its translation begins. All of
    the input is read before the first line is translated."""
    alignments: Path | None = None
    """File to write with a line for each line of output: pairs i-j of a word of the source and a
    word of the translation, both counted from 0; spaces separate words."""
    alignment_head: str | None = None
    """Head whose attention gives the alignments, as LAYER:HEAD, counted from 0, or LAYER:HEAD:1 for
    its attention one step later; None is that whose links agree most, on the first ten thousand
    lines or those that a pipe gives at once."""
    confidence: Path | None = None
    """File to write with a number from 0 to 1 for each line of output: exp of the mean
    log-probability of its subwords, or the estimate that t2t-jax calibrate fitted to that."""

    def run(self) -> int:
        """Translate some thousand lines at a time, to bound memory, and return the exit code."""
        self._check()
        head = head_of(self.alignment_head)
        if self.format == "document":
            return self._document(head)
        with ExitStack() as stack:
            chunks = self._with_prefixes(stack.enter_context(reading(self.input)))
            file = stack.enter_context(writing(self.output))
            alignments, confidences = (
                stack.enter_context(writing(path)) if path else None
                for path in (self.alignments, self.confidence)
            )
            translator = self.load()
            if not self.is_marked_up:
                self.check_lines(translator, self.input)
            beside = FilesBeside(translator, self.workdir, alignments, head, confidences)
            done, before = 0, list[str]()
            for texts, prefixes in chunks:
                how = {"first_line": done + 1, "before": before, **self.settings}
                before = [*before, *texts]
                before = before[max(0, len(before) - translator.config.data.context_sentences) :]
                if self.is_marked_up:
                    lines, head = self._marked_up(translator, texts, head, how)
                    file.writelines(f"{line}\n".encode() for line in lines)
                    file.flush()
                    done += len(texts)
                    continue
                how["prefixes"] = prefixes
                found = translator.nbest(texts, self.num_best, **how)
                written = self._format(found, first_index=done)
                file.writelines(f"{line}\n".encode() for line in written)
                file.flush()
                beside.write(texts, found)
                done += len(texts)
        return 0

    @property
    def is_marked_up(self) -> bool:
        """Return whether lines are more than text to the search: html, or text with terms."""
        return self.format == "html" or self.glossary is not None

    def _marked_up(
        self,
        translator: "Translator",
        texts: list[str],
        head: tuple[int, ...] | None,
        how: dict[str, Any],
    ) -> tuple[list[str], tuple[int, ...] | None]:
        """Translate lines; return them, and the head whose attention put tags and terms."""
        from t2t_jax.decoding.documents import translate_documents
        from t2t_jax.markup.document import document_of, html_document
        from t2t_jax.markup.tagged import Tagged

        if self.format == "html":
            documents = [*map(html_document, texts)]
            how["before"] = [" ".join(html_document(one).sentences) for one in how["before"]]
        else:
            documents = [document_of([Tagged(one)]) for one in texts]
        return translate_documents(translator, documents, glossary=self._terms, head=head, **how)

    @cached_property
    def _terms(self) -> "Glossary | None":
        from t2t_jax.data.terms import read_glossary

        return None if self.glossary is None else read_glossary(self.glossary)

    def _document(self, head: tuple[int, ...] | None) -> int:
        """Translate a file as a whole, and return the exit code."""
        from t2t_jax.decoding.documents import translate_documents
        from t2t_jax.markup.files import file_document

        if self.input is None or self.output is None:
            raise UserError("--format document needs --input and --output, both of one kind")
        if self.input.suffix.lower() != self.output.suffix.lower():
            raise UserError(
                f"{self.output} has another suffix than {self.input}; a document stays of its kind"
            )
        try:
            content = self.input.read_bytes()
        except OSError as error:
            raise UserError(f"cannot read {self.input}: {error.strerror or error}") from error
        translator = self.load()
        language = translator.config.data.source_language
        document = file_document(content, self.input.suffix, language)
        how = {"glossary": self._terms, "head": head, **self.settings}
        found, _ = translate_documents(translator, document.documents, **how)
        write_whole(self.output, document.filled(found))
        return 0

    def _check(self) -> None:
        """Refuse flags that do not go together, and a glossary that cannot be read."""
        others = {
            "--num-best": self.num_best > 1,
            "--scores": self.scores,
            "--prefix": self.prefix is not None,
            "--prefixes": self.prefixes is not None,
            "--alignments": self.alignments is not None,
            "--confidence": self.confidence is not None,
        }
        if (self.format != "text" or self.glossary) and any(others.values()):
            wrong = ", ".join(flag for flag, is_given in others.items() if is_given)
            which = "--glossary" if self.glossary else f"--format {self.format}"
            raise UserError(f"{wrong}: for text alone, not with {which}")
        if self.glossary is not None and len(self.workdir) > 1:
            raise UserError("--glossary needs the attention of one model; name one --workdir")
        if self.prefix is not None and self.prefixes is not None:
            raise UserError("--prefix and --prefixes both say how translations begin; give one")
        aligns = self.alignments or self.is_marked_up or self.format == "document"
        if self.alignment_head is not None and not aligns:
            raise UserError("--alignment-head is for --alignments; name a file with that")
        if self.alignments is not None and len(self.workdir) > 1:
            raise UserError("--alignments are of one model; name one --workdir")
        files = [path for path in (self.output, self.alignments, self.confidence) if path]
        if len(set(files)) < len(files):
            raise UserError("--output, --alignments and --confidence name the same file twice")
        _ = self._terms

    def _with_prefixes(
        self, chunks: Iterator[list[str]]
    ) -> Iterator[tuple[list[str], list[str] | None]]:
        """Return the lines some thousands at a time, with their prefixes; None for no prefixes."""
        if self.prefixes is None:
            one = self.prefix
            return ((texts, None if one is None else [one] * len(texts)) for texts in chunks)
        texts, prefixes = [*chunks], [*read_lines(self.prefixes)]
        count = sum(map(len, texts))
        if count != len(prefixes):
            raise UserError(
                f"{self.prefixes} has {len(prefixes):,} lines, and {count:,} lines are to be "
                "translated; give a prefix for each, and an empty line for none"
            )
        rest = iter(prefixes)
        return ((some, [*islice(rest, len(some))]) for some in texts)

    def _format(self, found: list[list["Hypothesis"]], first_index: int) -> Iterator[str]:
        for index, hypotheses in enumerate(found, first_index):
            for best in hypotheses:
                if self.scores or self.num_best > 1:
                    yield f"{index} ||| {best.text} ||| {best.log_prob:.4f} ||| {best.score:.4f}"
                else:
                    yield best.text
