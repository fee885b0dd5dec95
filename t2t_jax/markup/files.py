"""Files of many kinds as documents, and the same files again with the translations in them.

| suffix | what is translated |
|---|---|
| .txt | every sentence |
| .html .htm .xhtml | text and titles |
| .md .markdown | text, but for code, addresses and front matter |
| .srt .vtt | every cue by itself |
| .docx .pptx | paragraphs, with those of headers, notes, comments and text boxes |
| .odt .odp .ods | paragraphs and headings |
| .epub | all pages, and the table of contents |

Of a packed file, only the parts with text are read and written again; all others are copied.
"""

import io
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from t2t_jax.errors import UserError, warn
from t2t_jax.markup.document import Document, html_document, marked_up
from t2t_jax.markup.markdown import markdown_escaped, markdown_parts
from t2t_jax.markup.office import office_escaped, office_parts, with_runs
from t2t_jax.markup.sentences import sentence_splitter, text_document
from t2t_jax.markup.subtitles import Subtitles
from t2t_jax.markup.xml import xml_parts

MOST_BYTES = 256 << 20
"""The most bytes that the parts of a packed file may have together, unpacked."""
_DAMAGE = zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error, OSError, EOFError
_ODF_PARAGRAPHS = "text:p", "text:h"
_ODF_INLINE = {
    *("text:span", "text:a", "text:s", "text:tab", "text:line-break", "text:soft-page-break"),
    *("text:bookmark", "text:bookmark-start", "text:bookmark-end", "text:meta", "text:ruby-base"),
    *("text:reference-mark", "text:reference-mark-start", "text:reference-mark-end", "text:ruby"),
}
_ODF_PARTS = r"content\.xml|styles\.xml"
_PARTS: Mapping[str, str] = {
    ".docx": r"word/(document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml",
    ".pptx": r"ppt/(slides|notesSlides|comments)/[^/]*\.xml|ppt/diagrams/data\d*\.xml",
    **dict.fromkeys((".odt", ".odp", ".ods"), _ODF_PARTS),
    ".epub": r".*\.(x?html?|ncx)",
}
_MARKDOWN = ".md", ".markdown"
SUFFIXES = (".txt", ".html", ".htm", ".xhtml", *_MARKDOWN, ".srt", ".vtt", *_PARTS)
"""The kinds of files."""


class FileDocument(NamedTuple):
    """A file as documents."""

    documents: list[Document]
    """The documents, whose sentences are to be translated."""
    filled: Callable[[Sequence[str]], bytes]
    """A function that gives the content of the file with the translated documents in it."""


def file_document(
    content: bytes, suffix: str, language: str, most_bytes: int = MOST_BYTES
) -> FileDocument:
    """Make documents of a file.

    A part of a packed file that is damaged is named by a warning, and stays as it is.

    Args:
      content: the bytes of the file.
      suffix: the suffix of the file's name, which says what kind it is.
      language: the language of the text.
      most_bytes: the most bytes of a packed file's parts together, unpacked.

    Raises:
      UserError: there is no such kind, or the file is damaged or too large.
    """
    suffix, split = suffix.lower(), sentence_splitter(language)
    if suffix not in SUFFIXES:
        named = f"with the suffix {suffix}" if suffix else "without a suffix"
        raise UserError(f"a file {named} cannot be translated; there are {', '.join(SUFFIXES)}")
    if suffix in _PARTS:
        return _Packed(content, suffix, language, most_bytes).document()
    text = _decoded(content, f"the {suffix} file")
    if suffix in (".srt", ".vtt"):
        cues = Subtitles(text, split)
        return FileDocument(cues.documents, lambda found: cues.filled(found).encode())
    if suffix in _MARKDOWN:
        document = marked_up(markdown_parts(text), split, markdown_escaped)
    elif suffix == ".txt":
        document = text_document(text, language)
    else:
        document = html_document(text, split)
    return FileDocument([document], lambda found: found[0].encode())


def _decoded(content: bytes, shown: str) -> str:
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{shown} is not UTF-8 (byte {error.start + 1:,}); convert it") from error


class _Packed:
    """A packed file of a kind."""

    def __init__(self, content: bytes, suffix: str, language: str, most_bytes: int) -> None:
        self._suffix, self._language = suffix, language
        self._prefix = {".docx": "w", ".pptx": "a"}.get(suffix)
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                size = sum(entry.file_size for entry in archive.infolist())
                if size > most_bytes:
                    raise UserError(
                        f"the {suffix} file has {size:,} bytes unpacked, more than {most_bytes:,}; "
                        "split it"
                    )
                self._parts = {entry: self._part(archive, entry) for entry in archive.infolist()}
        except _DAMAGE as error:
            raise UserError(f"the {suffix} file is damaged, or no such file: {error}") from error

    def _part(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes | Document:
        """Return the document of a part with text, and the content of any other one."""
        content = archive.read(entry)
        if not re.fullmatch(_PARTS[self._suffix], entry.filename):
            return content
        try:
            return self._document(content.decode("utf-8-sig"), entry.filename)
        except UnicodeDecodeError:
            warn(f"{entry.filename} is not UTF-8, and stays as it is")
            return content

    def _document(self, text: str, name: str) -> Document:
        split = sentence_splitter(self._language)
        if self._prefix is not None:
            return marked_up(office_parts(text, self._prefix), split, office_escaped)
        if name.endswith(".ncx"):
            return marked_up(xml_parts(text, {"text"}), split)
        if name.endswith(".xml"):
            return marked_up(xml_parts(text, _ODF_PARAGRAPHS, _ODF_INLINE), split)
        return html_document(text, split)

    def document(self) -> FileDocument:
        """Return the documents of all parts with text."""
        return FileDocument(
            [part for part in self._parts.values() if isinstance(part, Document)], self._filled
        )

    def _filled(self, translated: Sequence[str]) -> bytes:
        each, out = iter(translated), io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for entry, part in self._parts.items():
                text = next(each) if isinstance(part, Document) else ""
                text = with_runs(text, self._prefix) if self._prefix else text
                archive.writestr(entry, part if isinstance(part, bytes) else text.encode())
        return out.getvalue()
