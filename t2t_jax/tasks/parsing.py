"""The constituency parsing task (section 6.3), scored by PARSEVAL."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from t2t_jax import paper
from t2t_jax.config import Config
from t2t_jax.data.trees import Tree, build_tree, escape_brackets, format_tree
from t2t_jax.system.records import Record
from t2t_jax.tasks.measures.parseval import parseval
from t2t_jax.tasks.task import GridMeasures, Measure, PublishedExperiment, Scored
from t2t_jax.tasks.text_to_text import TextToText


class Parsing(TextToText):
    """The parsing task, which maps sentences to trees, written as sequences of symbols."""

    model = "a parser"
    across_scripts = True  # lets a bracket with its label, such as (NP, be one subword
    measures = (
        Measure("recall", "recall"),
        Measure("precision", "precision"),
        Measure("f1", "F1", "signature"),
        Measure("num_repaired", "repaired"),
        Measure("num_skipped", "skipped"),
        Measure("num_errors", "errors"),
    )
    grid = GridMeasures(Measure("f1", "F1", "signature"))

    def as_source(self, line: str) -> str:
        """Escape brackets in a line of words, because they mark trees."""
        return " ".join(escape_brackets(line).split())

    def answer(self, source: str, output: str) -> tuple[str, bool]:
        """Return the bracketed tree in a model output, and whether the output needed a repair."""
        tree, repairs = build_tree(source.split(), output.split())
        return format_tree(tree) if tree.words else "", repairs > 0

    def score_outputs(
        self, sources: Sequence[str], outputs: Sequence[str], targets: Sequence[str], language: str
    ) -> Scored:
        """Score the trees in model outputs by PARSEVAL, and format them with brackets."""
        words = [source.split() for source in sources]
        built = [build_tree(ws, output.split()) for ws, output in zip(words, outputs, strict=True)]
        gold = [Tree(ws, target.split()) for ws, target in zip(words, targets, strict=True)]
        predicted = [tree for tree, _ in built]
        num_repaired = sum(repairs > 0 for _, repairs in built)
        scores = replace(parseval(gold, predicted), num_repaired=num_repaired)
        return Scored(
            scores, list(sources), [*map(format_tree, predicted)], [*map(format_tree, gold)]
        )

    def score_rows(self, record: Record) -> Iterable[tuple[str, str, str]]:
        """Yield table rows of EVALB scores, and of skipped and repaired sentences."""
        percents = ("recall", "precision", "f1", "f1_short", "complete_match", "tagging_accuracy")
        for name in percents:
            yield name, f"{record[name]:.2f}", f"percent, {record['signature']}"
        num_unscored = record["num_skipped"] + record["num_errors"]
        yield "left out", f"{num_unscored}", "sentences that EVALB would not score"
        yield "repaired", f"{record['num_repaired']:,}", "sentences whose output was not a tree"

    def experiment(self, config: Config) -> PublishedExperiment:
        """Return the experiment in the paper's Table 4 to compare with.

        A mixture is compared with "semi-supervised", other corpora with "WSJ only".
        """
        corpus = config.data.corpus
        row = "semi-supervised" if "+" in corpus else "WSJ only"
        name = f"parsing, {row}"
        return PublishedExperiment(
            name=name,
            model="parsing",
            section="6.3",
            test_sets=paper.PARSING_TEST_SETS,
            # The name of a treebank is its path, which does not identify its content.
            unchecked={"data": f"Which trees {corpus} has cannot be checked."},
            figures=[f"The paper, {name}: an F1 of {paper.TABLE_4[row]} on section 23 (Table 4)."],
        )


TASK = Parsing()
"""The task of constituency parsing."""
