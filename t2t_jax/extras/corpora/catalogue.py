"""List the archives, texts and cleaning rules of the public corpora that `t2t-jax data` prepares.

Archive sizes and SHA-256 sums come from tensorflow-datasets (`tensorflow_datasets/url_checksums`).
The sums of Multi30k were computed from its repository. WMT test sets and their MD5 sums come from
sacreBLEU. IWSLT 2014 has no published sums.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from t2t_jax.errors import UserError, did_you_mean, needs_extra, quote

Fault: TypeAlias = Literal["empty", "too long", "ratio"]
"""The reason to leave out a pair: an empty side, a long side, or sides of unequal length."""


@dataclass(frozen=True)
class Cleaning:
    """Limits on the lengths of the two sides of a sentence pair, in space-separated words."""

    max_words: int | None = None
    """The maximum number of words per side; None means no limit."""
    max_ratio: float | None = None
    """The maximum ratio of the lengths of the two sides; None means no limit."""

    def fault(self, source: str, target: str) -> Fault | None:
        """Return the reason to leave out a sentence pair, or None to keep the pair."""
        word_counts = len(source.split()), len(target.split())
        if not all(word_counts):
            return "empty"
        if self.max_words is not None and max(word_counts) > self.max_words:
            return "too long"
        if self.max_ratio is not None and max(word_counts) > self.max_ratio * min(word_counts):
            return "ratio"
        return None


_WMT_LICENCE = (
    "The WMT shared task releases its data for research; each archive states its own terms."
)
_NOT_CLEANED = (
    "not cleaned, as in tensor2tensor; the paper names no cleaning. Pairs with an empty side are "
    "left out"
)


@dataclass(frozen=True)
class Archive:
    """A file of a public corpus that can be downloaded."""

    url: str
    size: int | None = None
    """The size of the archive in bytes, or None if unknown."""
    digest: str | None = None
    """The checksum, such as `sha256:` and hexadecimal digits, or None if unknown. Without it, the
    archive must be a gzip file, which ends in a checksum."""
    saved_as: str = ""
    """The file name on disk; empty means the last part of the URL."""

    @property
    def name(self) -> str:
        """Return the file name of the archive on disk and on a mirror."""
        return self.saved_as or self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Text:
    """A text in an archive: one side of some sentence pairs."""

    archive: Archive
    """The archive that holds the text."""
    member: str = ""
    """The path of the text in the tar archive; empty if the archive is the text, with gzip."""
    language: str = ""
    """The language to read from a translation memory (TMX), which holds several languages."""

    @property
    def name(self) -> str:
        """Return the name of the text for readers, with the language if it is set."""
        name = f"{self.archive.name}:{self.member}" if self.member else self.archive.name
        return f"{name} ({self.language})" if self.language else name


class ParallelTexts(NamedTuple):
    """Two aligned texts: line n of the target translates line n of the source."""

    source: Text
    target: Text


@dataclass(frozen=True)
class PublicCorpus:
    """A public corpus of sentence pairs with its standard splits."""

    about: str
    """A description of the corpus and its splits."""
    languages: tuple[str, str]
    """The codes of the source and the target language."""
    train: tuple[ParallelTexts, ...]
    """The parts of the training set, in order."""
    test_sets: Mapping[str, str | tuple[ParallelTexts, ...]]
    """Dev and test sets, which are never cleaned: their parts, or a sacreBLEU test set name."""
    cleaning: Cleaning = field(default_factory=Cleaning)
    """The limits on training pairs."""
    cleaned_by: str = _NOT_CLEANED
    """The source of the limits, or the reason for no limits."""
    licence: str = _WMT_LICENCE
    """The terms of use."""
    every_nth_is_dev: int | None = None
    """If set to n, every nth training pair that is kept moves to dev."""

    @property
    def evaluation(self) -> dict[str, tuple[ParallelTexts, ...]]:
        """Return the aligned texts of each dev and test set, by name."""
        language_pair = "-".join(self.languages)
        return {
            split: _wmt_test_set(parts, language_pair) if isinstance(parts, str) else parts
            for split, parts in self.test_sets.items()
        }


def _wmt_test_set(test_set: str, language_pair: str) -> tuple[ParallelTexts]:
    with needs_extra("train", f"the test set {test_set}"):
        from sacrebleu.dataset import DATASETS

    dataset: Any = DATASETS[test_set]
    (url,), (md5,) = dataset.data, dataset.md5
    saved_as = f"{test_set.partition('/')[0]}-{url.rpartition('/')[2]}"
    archive = Archive(url, digest=f"md5:{md5}", saved_as=saved_as)
    source, target = dataset.langpairs[language_pair]
    return (ParallelTexts(Text(archive, source), Text(archive, target)),)


def _members(
    archive: Archive, stem: str, source: str, target: str, ending: str = ""
) -> ParallelTexts:
    return ParallelTexts(*(Text(archive, f"{stem}.{side}{ending}") for side in (source, target)))


_STATMT = "https://www.statmt.org"
_EUROPARL_7 = Archive(
    f"{_STATMT}/wmt13/training-parallel-europarl-v7.tgz",
    657_632_379,
    "sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)
_COMMON_CRAWL = Archive(
    f"{_STATMT}/wmt13/training-parallel-commoncrawl.tgz",
    918_311_367,
    "sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)
_NEWS_COMMENTARY_9 = Archive(
    f"{_STATMT}/wmt14/training-parallel-nc-v9.tgz",
    80_418_416,
    "sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
)
_UNITED_NATIONS = Archive(
    f"{_STATMT}/wmt13/training-parallel-un.tgz",
    2_365_634_246,
    "sha256:29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47",
)
_GIGA_FRENCH = Archive(
    f"{_STATMT}/wmt10/training-giga-fren.tar",
    2_595_102_720,
    "sha256:3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a",
)
_EUROPARL_8 = Archive(
    "https://data.statmt.org/wmt16/translation-task/training-parallel-ep-v8.tgz",
    225_018_324,
    "sha256:8917bd3bef3bc894c8519ca1f8a4c7c330aad08a1263655a9d99ee13d532e3c7",
)
_SETIMES = Archive(
    "https://object.pouta.csc.fi/OPUS-SETIMES/v2/tmx/en-ro.tmx.gz",
    23_458_958,
    "sha256:56bfaa2a8c8bdfccb7b50cc926067e2291347d807004e81faab8762ddbf26302",
)
_IWSLT14 = Archive(
    "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz", saved_as="iwslt14-de-en.tgz"
)
_IWSLT14_TESTS = "TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"
_MULTI30K = {
    "train.en": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
}


def _multi30k(stem: str) -> ParallelTexts:
    """Return the two aligned texts of a split of Multi30k, such as train: a gzip file each."""
    url = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"

    def text(name: str) -> Text:
        return Text(Archive(f"{url}/{name}.gz", digest=f"sha256:{_MULTI30K[name]}"))

    return ParallelTexts(text(f"{stem}.en"), text(f"{stem}.de"))


_CORPORA = {
    "wmt14-en-de": PublicCorpus(
        about="WMT 2014 English-German, the paper's corpus (section 5.1): Europarl v7, Common "
        "Crawl and News Commentary v9; newstest2013 as dev, newstest2014 in full as test",
        languages=("en", "de"),
        train=(
            _members(_EUROPARL_7, "training/europarl-v7.de-en", "en", "de"),
            _members(_COMMON_CRAWL, "commoncrawl.de-en", "en", "de"),
            _members(_NEWS_COMMENTARY_9, "training/news-commentary-v9.de-en", "en", "de"),
        ),
        test_sets={"dev": "wmt13", "test": "wmt14/full", "newstest2014-filtered": "wmt14"},
    ),
    "wmt14-en-fr": PublicCorpus(
        about="WMT 2014 English-French, the paper's larger corpus (section 5.1): Europarl v7, "
        "Common Crawl, United Nations, the 10^9 corpus and News Commentary v9; newstest2013 as "
        "dev, newstest2014 as test",
        languages=("en", "fr"),
        train=(
            _members(_EUROPARL_7, "training/europarl-v7.fr-en", "en", "fr"),
            _members(_COMMON_CRAWL, "commoncrawl.fr-en", "en", "fr"),
            _members(_UNITED_NATIONS, "un/undoc.2000.fr-en", "en", "fr"),
            _members(_GIGA_FRENCH, "giga-fren.release2.fixed", "en", "fr", ".gz"),
            _members(_NEWS_COMMENTARY_9, "training/news-commentary-v9.fr-en", "en", "fr"),
        ),
        test_sets={"dev": "wmt13", "test": "wmt14/full"},
    ),
    "wmt16-en-ro": PublicCorpus(
        about="WMT 2016 English-Romanian: Europarl v8 and SETIMES2; newsdev2016 as dev, "
        "newstest2016 as test",
        languages=("en", "ro"),
        train=(
            _members(_EUROPARL_8, "training-parallel-ep-v8/europarl-v8.ro-en", "en", "ro"),
            ParallelTexts(Text(_SETIMES, language="en"), Text(_SETIMES, language="ro")),
        ),
        test_sets={"dev": "wmt16/dev", "test": "wmt16"},
        cleaning=Cleaning(max_words=80, max_ratio=9.0),
        cleaned_by="the limits of Sennrich et al. 2016 (1 to 80 words, ratio 9), which they set "
        "for Moses' tokens; here they count words between spaces",
    ),
    "multi30k-en-de": PublicCorpus(
        about="Multi30k (Elliott et al. 2016), task 1: captions of images in English and German; "
        "the validation set as dev, test_2016_flickr as test",
        languages=("en", "de"),
        train=(_multi30k("train"),),
        test_sets={"dev": (_multi30k("val"),), "test": (_multi30k("test_2016_flickr"),)},
        cleaned_by="not cleaned, as its makers publish it",
        licence="Its makers allow research that is not commercial: see "
        "https://github.com/multi30k/dataset",
    ),
    "iwslt14-de-en": PublicCorpus(
        about="IWSLT 2014 German-English, talks, in the splits that fairseq made usual: every 23rd "
        "pair of the training set as dev, five smaller sets together as test",
        languages=("de", "en"),
        train=(_members(_IWSLT14, "de-en/train.tags.de-en", "de", "en"),),
        test_sets={
            "test": tuple(
                _members(_IWSLT14, f"de-en/IWSLT14.{name}.de-en", "de", "en", ".xml")
                for name in _IWSLT14_TESTS
            )
        },
        cleaning=Cleaning(max_words=175, max_ratio=1.5),
        cleaned_by="the limits of fairseq (1 to 175 words, ratio 1.5), which it sets for Moses' "
        "tokens in lower case; here they count words between spaces, and cases are kept",
        licence="TED talks, CC BY-NC-ND: see https://wit3.fbk.eu",
        every_nth_is_dev=23,
    ),
}
CORPORA: tuple[str, ...] = tuple(_CORPORA)
"""The names of the public corpora."""


def public_corpus(name: str) -> PublicCorpus:
    """Look up a public corpus by name."""
    if name not in _CORPORA:
        hint = did_you_mean(name, CORPORA, f"choose {', '.join(CORPORA)}")
        raise UserError(f"there is no public corpus {quote(name)}; {hint}")
    return _CORPORA[name]
