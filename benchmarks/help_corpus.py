r"""Make parallel text with documents and inline tags of LibreOffice's help in two languages.

    apt-get download libreoffice-help-en-us libreoffice-help-de
    for package in libreoffice-help-*.deb; do dpkg -x $package help; done
    python benchmarks/help_corpus.py help/usr/share/libreoffice/help corpora/help

The help (Mozilla Public License 2.0) has some 2,500 pages, whose paragraphs have the same ids in
every language. A line is a paragraph, and a document is a page: `train.en train.de train.doc` and
so for dev and test, to each of which every 20th page goes. `dev.tags.en`, `test.tags.de` and so on
have the same lines with the tags of bold, slanted, typed and linked text, as `<b> <i> <tt> <a>`.
"""

import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path

_KINDS = {
    **dict.fromkeys(["b", "strong"], "b"),
    **dict.fromkeys(["i", "em", "emph"], "i"),
    **dict.fromkeys(["tt", "code", "literal", "input", "keystroke"], "tt"),
    "a": "a",
}
_CLASSES = {"ui": "b", "emph": "b", "item": "i", "literal": "tt", "input": "tt"}
_PARAGRAPHS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}


class _Page(HTMLParser):
    """Reads the paragraphs of a page, by their ids."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, tuple[str, str]] = {}
        self._id = ""
        self._plain: list[str] = []
        self._tagged: list[str] = []
        self._open: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in _PARAGRAPHS:
            self._id, self._plain, self._tagged, self._open = given.get("id") or "", [], [], []
        elif self._id and tag not in {"br", "img", "meta", "input", "wbr"}:
            kind = _KINDS.get(tag) or _CLASSES.get((given.get("class") or "").split(" ")[0], "")
            if tag == "a" and "href" not in given:
                kind = ""
            self._open.append((tag, kind))
            self._tagged.append(f"<{kind}>" if kind else "")

    def handle_endtag(self, tag: str) -> None:
        if tag in _PARAGRAPHS and self._id:
            texts = (" ".join("".join(one).split()) for one in (self._plain, self._tagged))
            self.found[self._id] = (next(texts), next(texts))
            self._id = ""
        elif self._id and self._open and self._open[-1][0] == tag:
            kind = self._open.pop()[1]
            self._tagged.append(f"</{kind}>" if kind else "")

    def handle_data(self, data: str) -> None:
        if self._id:
            self._plain.append(data)
            self._tagged.append(escape(data, quote=False))


def _paragraphs(path: Path) -> dict[str, tuple[str, str]]:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page.found


def main() -> None:
    """Write the files."""
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    languages = {"en": source / "en-US" / "text", "de": source / "de" / "text"}
    out.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = {}
    seen: set[tuple[str, str]] = set()
    number = 0
    for page in sorted(languages["en"].rglob("*.html")):
        name = page.relative_to(languages["en"])
        if not (languages["de"] / name).exists():
            continue
        english, german = _paragraphs(page), _paragraphs(languages["de"] / name)
        split = {0: "dev", 10: "test"}.get(number % 20, "train")
        number += 1
        for identity, (plain, tagged) in english.items():
            there, there_tagged = german.get(identity, ("", ""))
            pair = plain, there
            # Pages include parts of others; a repetition would be in two splits.
            if not plain or not there or plain == there or pair in seen:
                continue
            seen.add(pair)
            for ending, line in (("en", plain), ("de", there), ("doc", str(name))):
                lines.setdefault(f"{split}.{ending}", []).append(line)
            if split != "train":
                lines.setdefault(f"{split}.tags.en", []).append(tagged)
                lines.setdefault(f"{split}.tags.de", []).append(there_tagged)
    for file, of_file in lines.items():
        (out / file).write_text("".join(f"{line}\n" for line in of_file), encoding="utf-8")
        print(f"{len(of_file):,} lines in {file}")


if __name__ == "__main__":
    main()
