"""Translation of parallel text, scored by sacreBLEU's and the paper's BLEU and by chrF."""

from collections.abc import Iterable, Sequence

from t2t_jax import paper
from t2t_jax.config import Config
from t2t_jax.data.languages import language_of
from t2t_jax.errors import OF_SCORES, check_installed
from t2t_jax.system.records import Record
from t2t_jax.tasks import task
from t2t_jax.tasks.measures import bleu
from t2t_jax.tasks.text_to_text import TextToText

_PAPERS_BLEU = "tokenized_split_bleu"


class Translation(TextToText):
    """The task of sentences in one language and their translations into another."""

    model = "a model that translates"
    measures = (
        task.Measure("bleu", "sacreBLEU", "bleu_signature"),
        task.Measure(_PAPERS_BLEU, _PAPERS_BLEU, f"{_PAPERS_BLEU}_signature"),
        task.Measure("chrf", "chrF", "chrf_signature"),
    )
    grid = task.GridMeasures(measures[0], measures[1], bootstrap=True)

    def scored(self, asked: task.Scoring) -> task.Scored:
        """Translate the sources of a split, and score the translations; see `Task.scored`."""
        check_installed("train", "BLEU", *OF_SCORES)  # before the search, which takes long
        found, name = super().scored(asked), asked.translator.config.evaluation.metric
        if name is None:
            return found
        score = bleu.mean_of_sentences(name, found.hypotheses, found.references)
        return found._replace(
            scores=bleu.ScoresWithMetric(**vars(found.scores), metric=name, metric_score=score)
        )

    def score_outputs(
        self, sources: Sequence[str], outputs: Sequence[str], targets: Sequence[str], language: str
    ) -> task.Scored:
        """Score translations by BLEU and chrF; references are the untouched lines of the corpus."""
        scores = bleu.corpus_scores(outputs, targets, language)
        return task.Scored(scores, list(sources), list(outputs), list(targets))

    def score_rows(self, record: Record) -> Iterable[tuple[str, str, str]]:
        """Yield the rows of sacreBLEU's BLEU, of the paper's BLEU and of chrF."""
        for measure in self.measures:
            assert measure.signature_field
            yield measure.name, f"{record[measure.field]:.2f}", record[measure.signature_field]

    def experiment(self, config: Config) -> task.PublishedExperiment:
        """Return the base or the big model, by width and heads, on English-German or -French."""
        model, data = config.model, config.data
        size = "big" if (model.d_model, model.num_heads) == (1024, 16) else "base"
        german = language_of(data.target_language) != "fr"
        name = f"{size}, English-{'German' if german else 'French'}"
        return task.PublishedExperiment(
            name=name,
            model=size,
            test_sets=paper.TEST_SETS,
            comparable=_newstest(data.corpus),
            changes_on_dev=paper.TABLE_3_CHANGES if german else {},
            figures=_figures(config, size, name, german),
        )

    def kind_of_measure(self, records: Sequence[Record]) -> task.Compared:
        """Compare the kinds of BLEU that were measured with the paper's, `tokenized_split_bleu`."""
        known = {name for record in records for name, value in record.items() if value is not None}
        measured = [one.name for one in self.measures if "bleu" in one.field and one.field in known]
        deviates = bool(records) and _PAPERS_BLEU not in measured
        return task.Compared(deviates, "kind of BLEU", "6.1", _PAPERS_BLEU, ", ".join(measured))


def _newstest(corpus: str) -> frozenset[str]:
    """Return the names of the paper's test sets on WMT 2014; none on another corpus."""
    dev, test = paper.TEST_SETS.values()
    if not bleu.name_of_test_set(corpus, "dev", 0).startswith(dev):
        return frozenset()
    sizes = bleu.NEWSTEST2014_FILTERED, bleu.NEWSTEST2014_FULL
    return frozenset([dev, *(bleu.name_of_test_set(corpus, test, size) for size in sizes)])


def _figures(config: Config, size: str, experiment: str, german: bool) -> list[str]:
    """Return sentences on the paper's figures for the experiment and the run's row of Table 3."""
    row = paper.TABLE_2[size]
    score = row.test_bleu_german if german else row.test_bleu_french
    figures = [f"The paper, {experiment}: {score} BLEU on {paper.TEST_SETS['test']} (Table 2)."]
    for name, variant in paper.TABLE_3.items():
        same = all(config.value(path) == value for path, value in variant.settings.items())
        if same and german:
            figures.append(
                f"The paper, row {name} of Table 3: {variant.dev_bleu} BLEU and a perplexity of "
                f"{variant.dev_perplexity} on {paper.TEST_SETS['dev']}."
            )
    figures.append(f"{_PAPERS_BLEU} is the paper's BLEU: tokenised text, compounds split.")
    return figures


TASK: task.Task = Translation()
"""The task of translation."""
