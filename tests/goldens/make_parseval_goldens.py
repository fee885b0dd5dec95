"""Write `parseval_goldens.json`: what EVALB counts for pairs of trees, one for each of its rules.

    python tests/goldens/make_parseval_goldens.py DIRECTORY_OF_EVALB

The directory holds the program `evalb`, compiled from https://nlp.cs.nyu.edu/evalb/, and the file
`COLLINS.prm` that comes with it. The tests read the JSON and need neither. It has

    cases       of each pair what it is about, the gold and the predicted tree, and EVALB's row for
                it: `status` is 0 if the pair counts, 1 for an error and 2 if it is skipped
    all, short  EVALB's summary over all pairs, and over those of at most 40 words
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOG = "(TOP (S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .)))"
CAT = (
    "(TOP (S (NP (PRP We)) (VP (VBD took) (NP (NP (DT the) (NN cat)) "
    "(PP (IN with) (NP (JJ white) (NNS paws)))) (ADVP (RB home))) (. .)))"
)
GAVE_UP = "(TOP (S (NP (PRP She)) (VP (VBD gave) {} (ADVP (RB early)))))"
SAID = (
    "(TOP (S (`` ``) (S (NP (PRP It)) (VP (VBZ rains))) (, ,) ('' '') (NP (PRP he)) "
    "(VP (VBD said)) (: ;) (. !)))"
)


def long_tree(num_words: int, label: str, empty: str = "") -> str:
    """A sentence of so many words and a full stop."""
    return f"(TOP (S {empty}({label} {' '.join(['(NN word)'] * (num_words - 1))}) (. .)))"


CASES = [
    ("the same tree", DOG, DOG),
    ("the same larger tree", CAT, CAT),
    ("a wrong label", DOG, DOG.replace("(NP", "(PP")),
    ("a constituent missing", DOG, "(TOP (S (NP (DT The) (NN dog)) (VBZ barks) (. .)))"),
    ("no constituent predicted", DOG, "(TOP (DT The) (NN dog) (VBZ barks) (. .))"),
    ("no constituent in gold", "(TOP (UH Oh))", "(TOP (INTJ (UH Oh)))"),
    ("no constituent in either", "(TOP (UH Oh))", "(TOP (UH Oh))"),
    (
        "a phrase attached elsewhere",
        CAT,
        "(TOP (S (NP (PRP We)) (VP (VBD took) (NP (DT the) (NN cat)) "
        "(PP (IN with) (NP (JJ white) (NNS paws))) (ADVP (RB home))) (. .)))",
    ),
    (
        "brackets that cross",
        CAT,
        "(TOP (S (NP (PRP We)) (VP (VBD took) (NP (DT the) (NN cat) (PP (IN with))) "
        "(NP (JJ white) (NNS paws) (ADVP (RB home)))) (. .)))",
    ),
    ("a chain of one label predicted twice", DOG, DOG.replace("(VBZ barks)", "(VP (VBZ barks))")),
    (
        "a chain of one label in gold, once in the prediction",
        "(TOP (S (NP (NP (NNS Dogs))) (VP (VBP bark))))",
        "(TOP (S (NP (NNS Dogs)) (VP (VBP bark))))",
    ),
    (
        "a chain of one label three times against two",
        "(TOP (NP (NP (NP (NNS Dogs)))))",
        "(TOP (X (NP (NP (NNS Dogs)))))",
    ),
    (
        "a chain in the other order",
        "(TOP (S (VP (VB Go) (ADVP (RB away)))))",
        "(TOP (VP (S (VB Go) (ADVP (RB away)))))",
    ),
    (
        "PRT for ADVP",
        GAVE_UP.format("(PRT (RP up))"),
        GAVE_UP.format("(ADVP (RP up))").replace("(ADVP (RB early))", "(PRT (RB early))"),
    ),
    ("a wrong tag", DOG, DOG.replace("(NN dog)", "(NNP dog)")),
    ("tags PRT and ADVP are the same too", "(TOP (S (PRT up)))", "(TOP (S (ADVP up)))"),
    (
        "function tags in gold",
        "(TOP (S (NP-SBJ-1 (PRP It)) (VP=2 (VBZ rains))))",
        "(TOP (S (NP (PRP It)) (VP (VBZ rains))))",
    ),
    ("a tag is not cut at its dash", "(TOP (S (NN-X It)))", "(TOP (S (NN It)))"),
    (
        "a label that begins with a dash becomes empty",
        "(TOP (S (-X- (PRP It)) (-Y- (VBZ rains))))",
        "(TOP (S (-Z- (PRP It)) (=Y (VBZ rains))))",
    ),
    (
        "empty elements in gold",
        "(TOP (S (NP-SBJ (-NONE- *)) (VP (VB Go) (NP (NN home)) (ADVP (-NONE- *T*-1)))))",
        "(TOP (S (VP (VB Go) (NP (NN home)))))",
    ),
    ("punctuation all through", SAID, SAID),
    (
        "punctuation attached elsewhere",
        SAID,
        "(TOP (S (S (`` ``) (NP (PRP It)) (VP (VBZ rains) (, ,) ('' ''))) "
        "(NP (PRP he)) (VP (VBD said) (: ;) (. !))))",
    ),
    ("one mark for another", SAID, SAID.replace("(, ,)", "(: ,)").replace("(. !)", "('' !)")),
    (
        "punctuation left out",
        SAID,
        "(TOP (S (S (NP (PRP It)) (VP (VBZ rains))) (NP (PRP he)) (VP (VBD said))))",
    ),
    ("punctuation tagged as a word", DOG, DOG.replace("(. .)", "(NN .)")),
    ("a word tagged as punctuation", DOG, DOG.replace("(NN dog)", "(: dog)")),
    (
        "a word tagged as punctuation and punctuation as a word",
        DOG,
        DOG.replace("(NN dog)", "(: dog)").replace("(. .)", "(NN .)"),
    ),
    ("a word left out", DOG, DOG.replace("(DT The) ", "")),
    ("a word too many", DOG, DOG.replace("(DT The)", "(DT The) (JJ old)")),
    ("another word", DOG, DOG.replace("dog", "Dog")),
    ("no word predicted", DOG, "(TOP)"),
    ("nothing but punctuation predicted", DOG, "(TOP (S (. The) (. dog) (. barks) (. .)))"),
    ("nothing but punctuation in gold", "(TOP (S (: --) (. .)))", DOG),
    ("nothing but punctuation in either", "(TOP (S (: --) (. .)))", "(TOP (S (: --) (. .)))"),
    (
        "brackets are words, and a constituent of punctuation is none",
        "(TOP (S (NP (PRP It)) (PRN (-LRB- -LRB-) (NN sic) (-RRB- -RRB-)) (X (. .))))",
        "(TOP (S (NP (PRP It)) (PRN (-LRB- -LRB-) (NN sic) (-RRB- -RRB-)) (. .)))",
    ),
    ("a constituent labelled as punctuation", DOG, DOG.replace("(VP", "(,").replace("(NP", "(``")),
    ("letters beyond ASCII", "(TOP (NP (NN café)))", "(TOP (NP (NNP café)))"),
    ("40 words", long_tree(40, "NP"), long_tree(40, "NP")),
    ("41 words", long_tree(41, "NP"), long_tree(41, "VP")),
    (
        "40 words and an empty element",
        long_tree(40, "NP", empty="(NP (-NONE- *)) "),
        long_tree(40, "ADJP"),
    ),
]

COLUMNS = (
    *("length", "status", "recall", "precision", "matched", "gold_brackets"),
    *("predicted_brackets", "crossing", "words", "correct_tags", "tagging_accuracy"),
)
SUMMARY = {
    "num_sentences": "Number of sentence",
    "num_errors": "Number of Error sentence",
    "num_skipped": "Number of Skip  sentence",
    "recall": "Bracketing Recall",
    "precision": "Bracketing Precision",
    "f1": "Bracketing FMeasure",
    "complete_match": "Complete match",
    "tagging_accuracy": "Tagging accuracy",
}


def run_evalb(directory: Path) -> str:
    """What EVALB prints for all pairs."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, side) for side in ("gold", "predicted")]
        for path, trees in zip(paths, list(zip(*CASES, strict=True))[1:], strict=True):
            path.write_text("".join(f"{tree}\n" for tree in trees), encoding="utf-8")
        options = ["-p", directory / "COLLINS.prm", "-e", "1000"]  # errors before it gives up
        command = [directory / "evalb", *options, *paths]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def read_summary(text: str) -> dict[str, float]:
    """The numbers of one block of the summary."""
    lines = dict(re.findall(r"^(.+?) += +(\S+)$", text, re.MULTILINE))
    return {name: float(lines[line]) for name, line in SUMMARY.items()}


def main() -> None:
    """Run EVALB and write the file."""
    table, _, summary = run_evalb(Path(sys.argv[1])).partition("=== Summary ===")
    rows = [line.split()[1:] for line in table.splitlines() if re.match(r" *\d+  ", line)]
    overall, _, short = summary.partition("-- len<=40 --")
    goldens = {
        "cases": [
            {"about": about, "gold": gold, "predicted": predicted}
            | dict(zip(COLUMNS, map(float, row), strict=True))
            for (about, gold, predicted), row in zip(CASES, rows, strict=True)
        ],
        "all": read_summary(overall),
        "short": read_summary(short),
    }
    path = Path(__file__).with_name("parseval_goldens.json")
    path.write_text(json.dumps(goldens, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
