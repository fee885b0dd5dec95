"""The translation task, scored by sacreBLEU, the BLEU of the paper, and chrF."""

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
    """The task that maps sentences of one language to translations into another."""

    model = "a model that translates"
    measures = (
        task.Measure("bleu", "sacreBLEU", "bleu_signature"),
        task.Measure(_PAPERS_BLEU, _PAPERS_BLEU, f"{_PAPERS_BLEU}_signature"),
        task.Measure("chrf", "chrF", "chrf_signature"),
    )
    grid = task.GridMeasures(measures[0], measures[1], bootstrap=True)

    def scored(self, request: task.Scoring) -> task.Scored:
        """Translate the sources of a split, and score the translations."""
        check_installed("train", "BLEU", *OF_SCORES)  # fails before the slow decoding
        result, metric = super().scored(request), request.translator.config.evaluation.metric
        if metric is None:
            return result
        score = bleu.mean_of_sentences(metric, result.hypotheses, result.references)
        return result._replace(
            scores=bleu.ScoresWithMetric(**vars(result.scores), metric=metric, metric_score=score)
        )

    def score_outputs(
        self, sources: Sequence[str], outputs: Sequence[str], targets: Sequence[str], language: str
    ) -> task.Scored:
        """Score translations by BLEU and chrF against the unchanged lines of the corpus."""
        scores = bleu.corpus_scores(outputs, targets, language)
        return task.Scored(scores, list(sources), list(outputs), list(targets))

    def score_rows(self, record: Record) -> Iterable[tuple[str, str, str]]:
        """Yield the table rows of sacreBLEU, the BLEU of the paper, and chrF."""
        for measure in self.measures:
            assert measure.signature_field
            yield measure.name, f"{record[measure.field]:.2f}", record[measure.signature_field]

    def experiment(self, config: Config) -> task.PublishedExperiment:
        """Return the paper's base or big model, on English-German or English-French."""
        model, data = config.model, config.data
        model_size = "big" if (model.d_model, model.num_heads) == (1024, 16) else "base"
        is_german = language_of(data.target_language) != "fr"
        name = f"{model_size}, English-{'German' if is_german else 'French'}"
        return task.PublishedExperiment(
            name=name,
            model=model_size,
            test_sets=paper.TEST_SETS,
            comparable=_newstest(data.corpus),
            changes_on_dev=paper.TABLE_3_CHANGES if is_german else {},
            figures=_figures(config, model_size, name, is_german),
        )


def _newstest(corpus: str) -> frozenset[str]:
    """Return the names of the paper's test sets if the corpus is WMT 2014, else no names."""
    dev, test = paper.TEST_SETS.values()
    if not bleu.name_of_test_set(corpus, "dev", 0).startswith(dev):
        return frozenset()
    sizes = bleu.NEWSTEST2014_FILTERED, bleu.NEWSTEST2014_FULL
    return frozenset([dev, *(bleu.name_of_test_set(corpus, test, size) for size in sizes)])


def _figures(config: Config, model_size: str, experiment: str, is_german: bool) -> list[str]:
    """Describe the paper's scores for the experiment, and for the matching row of Table 3."""
    row = paper.TABLE_2[model_size]
    score = row.test_bleu_german if is_german else row.test_bleu_french
    figures = [f"The paper, {experiment}: {score} BLEU on {paper.TEST_SETS['test']} (Table 2)."]
    for name, variant in paper.TABLE_3.items():
        is_match = all(config.value(path) == value for path, value in variant.settings.items())
        if is_match and is_german:
            figures.append(
                f"The paper, row {name} of Table 3: {variant.dev_bleu} BLEU and a perplexity of "
                f"{variant.dev_perplexity} on {paper.TEST_SETS['dev']}."
            )
    figures.append(f"{_PAPERS_BLEU} is the paper's BLEU: tokenized text, compounds split.")
    return figures


TASK: task.Task = Translation()
"""The task of translation."""
