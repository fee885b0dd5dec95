"""Files of office programs and others: read by their own packages before and after."""

import io
import re
import zipfile
from pathlib import Path

import docx
import pptx
import pytest
from docx.enum.text import WD_BREAK
from docx.oxml import parse_xml
from odf import opendocument, teletype
from odf.style import Style, TextProperties
from odf.text import H, P, Span

from t2t_jax.errors import UserError
from t2t_jax.markup.files import file_document

_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_LINK = f"""<w:hyperlink {_W} w:anchor="end"><w:r><w:t>the link</w:t></w:r></w:hyperlink>"""
_FIELD = [
    f'<w:r {_W}><w:fldChar w:fldCharType="begin"/></w:r>',
    f"<w:r {_W}><w:instrText> PAGE </w:instrText></w:r>",
    f'<w:r {_W}><w:fldChar w:fldCharType="separate"/></w:r>',
    f"<w:r {_W}><w:t>seven</w:t></w:r>",
    f'<w:r {_W}><w:fldChar w:fldCharType="end"/></w:r>',
]
_BOX = f"""<w:r {_W}><w:pict><w:txbxContent><w:p><w:r><w:t>In a box.</w:t></w:r></w:p>
</w:txbxContent></w:pict></w:r>"""


def translated(content, suffix):
    """The file with the words of each sentence in capitals and in the order from the last one."""
    found = file_document(content, suffix, "en")
    filled = []
    for document in found.documents:
        texts = [" ".join(reversed(one.upper().split())) for one in document.sentences]
        links = [
            [(len(text.split()) - 1 - n, n) for n in range(len(text.split()))] for text in texts
        ]
        filled.append(document.filled(texts, links))
    return found.filled(filled)


def bytes_of(document):
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def test_a_text_of_word_keeps_formats_at_their_words():
    document = docx.Document()
    document.add_heading("The first heading", 1)
    paragraph = document.add_paragraph("Press the ")
    paragraph.add_run("green ").bold = True
    button = paragraph.add_run("button")
    button.bold, button.italic = True, True
    paragraph.add_run(" now & wait < 5 or ")
    paragraph._p.append(parse_xml(_LINK))
    table = document.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "A cell", "42"
    document.sections[0].header.paragraphs[0].text = "At the top"
    broken = document.add_paragraph("one ")
    broken.add_run().add_break(WD_BREAK.LINE)
    broken.add_run("two")
    for xml in _FIELD:
        broken._p.append(parse_xml(xml))
    document.add_paragraph("Beside ")._p.append(parse_xml(_BOX))
    again = docx.Document(io.BytesIO(translated(bytes_of(document), ".docx")))
    heading, first, second, third = again.paragraphs
    assert heading.text == "HEADING FIRST THE"
    assert heading.style.name == "Heading 1"
    assert first.text == "LINK THE OR 5 < WAIT & NOW BUTTON GREEN THE PRESS"
    assert [link.text for link in first.hyperlinks] == ["LINK THE"]
    bold = {run.text.strip() for run in first.runs if run.bold}
    assert bold == {"BUTTON", "GREEN"}
    assert {run.text.strip() for run in first.runs if run.italic} == {"BUTTON"}
    [cells] = [[cell.text for cell in row.cells] for row in again.tables[0].rows]
    assert cells == ["CELL A", "42"]
    assert again.sections[0].header.paragraphs[0].text == "TOP THE AT"
    xml = second._p.xml
    assert xml.count("<w:br/>") == 1
    order = [xml.index(part) for part in ('"begin"', "PAGE", '"separate"', "SEVEN", '"end"')]
    assert order == sorted(order)
    assert "BOX. A IN" in third._p.xml
    assert third.text == "BESIDE "


def test_a_comment_within_a_run_takes_no_text_with_it():
    text = "<w:p><w:r><!-- a --><w:t>One two</w:t><?b?></w:r></w:p>"
    found = zipfile.ZipFile(io.BytesIO(translated(packed({"word/document.xml": text}), ".docx")))
    written = found.read("word/document.xml").decode()
    assert "TWO" in written
    assert "ONE</w:t>" in written
    assert written.count("<w:r>") == written.count("</w:r>")
    assert all(written.count(one) == 1 for one in ("<!-- a -->", "<?b?>"))


def test_slides_and_their_notes():
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "A short title"
    frame = slide.placeholders[1].text_frame
    frame.text = "Plain and "
    run = frame.paragraphs[0].add_run()
    run.text, run.font.bold = "bold words", True
    slide.notes_slide.notes_text_frame.text = "Say it"
    [again] = pptx.Presentation(io.BytesIO(translated(bytes_of(deck), ".pptx"))).slides
    assert again.shapes.title.text == "TITLE SHORT A"
    [paragraph] = again.placeholders[1].text_frame.paragraphs
    assert [(run.text, run.font.bold) for run in paragraph.runs] == [
        ("WORDS BOLD", True),
        (" AND PLAIN", None),
    ]
    assert again.notes_slide.notes_text_frame.text == "IT SAY"


def test_a_text_of_libreoffice():
    document = opendocument.OpenDocumentText()
    bold = Style(name="Bold", family="text")
    bold.addElement(TextProperties(fontweight="bold"))
    document.automaticstyles.addElement(bold)
    document.text.addElement(H(outlinelevel=1, text="The heading"))
    paragraph = P(text="Take the ")
    paragraph.addElement(Span(stylename=bold, text="red"))
    paragraph.addText(" one. Then go.")
    document.text.addElement(paragraph)
    again = opendocument.load(io.BytesIO(translated(bytes_of_odf(document), ".odt")))
    assert [teletype.extractText(one) for one in again.getElementsByType(H)] == ["HEADING THE"]
    [found] = again.getElementsByType(P)
    assert teletype.extractText(found) == "ONE. RED THE TAKE GO. THEN"
    assert [teletype.extractText(one) for one in again.getElementsByType(Span)] == ["RED"]


def bytes_of_odf(document):
    out = io.BytesIO()
    document.write(out)
    return out.getvalue()


def packed(parts, **compression):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content, **compression)
    return out.getvalue()


def test_a_book_keeps_its_order_and_what_is_no_text():
    parts = {
        "mimetype": b"application/epub+zip",
        "OEBPS/a.xhtml": b'<?xml version="1.0"?><html><p>The <i>end</i>.</p><br/></html>',
        "OEBPS/toc.ncx": b"<ncx><navLabel><text>Part one</text></navLabel><x>stays</x></ncx>",
        "OEBPS/x.png": bytes(range(256)),
    }
    found = zipfile.ZipFile(io.BytesIO(translated(packed(parts), ".epub")))
    assert found.namelist() == list(parts)
    assert found.read("OEBPS/a.xhtml").decode().endswith("<html><p><i>END</i>. THE</p><br/></html>")
    assert b"<text>ONE PART</text></navLabel><x>stays</x>" in found.read("OEBPS/toc.ncx")
    assert {name: found.read(name) for name in ("mimetype", "OEBPS/x.png")} == {
        name: parts[name] for name in ("mimetype", "OEBPS/x.png")
    }


@pytest.mark.parametrize(
    ("suffix", "text", "expected"),
    [
        (".txt", "One two.  Three!\n\nfour", "TWO. ONE  THREE!\n\nFOUR"),
        (".html", "<title>a b</title><p>c <b>d</b></p>\n", "<title>B A</title><p><b>D</b> C</p>\n"),
        (
            ".srt",
            "1\n00:00:01,000 --> 00:00:02,000\nI see\n<i>you</i> now.\n\n2\n00:03 --> 00:04\nNo\n",
            "1\n00:00:01,000 --> 00:00:02,000\nNOW. <i>YOU</i>\nSEE I\n\n2\n00:03 --> 00:04\nNO\n",
        ),
        (".vtt", "WEBVTT\n\n0:1 --> 0:2 x\nGo on", "WEBVTT\n\n0:1 --> 0:2 x\nON GO"),
        (".srt", "-->" * 50_000 + "\n\n", "-->" * 50_000 + "\n\n"),  # read once, not 50,000 times
    ],
)  # fmt: skip
def test_plain_files(suffix, text, expected):
    assert translated(text.encode(), suffix).decode() == expected


def test_what_is_no_such_file_is_refused_in_a_line():
    with pytest.raises(UserError, match=r"a file with the suffix .pdf cannot be translated; there"):
        file_document(b"", ".pdf", "en")
    with pytest.raises(UserError, match=r"the .docx file is damaged, or no such file: File is"):
        file_document(b"PK", ".docx", "en")
    with pytest.raises(UserError, match=r"the .txt file is not UTF-8 \(byte 2\); convert it"):
        file_document(b"a\xff", ".txt", "en")
    bomb = packed({"word/document.xml": b"<w:p>" * 100_000}, compress_type=zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match=r"has 500,000 bytes unpacked, more than 1,000; split it"):
        file_document(bomb, ".docx", "en", most_bytes=1000)


@pytest.mark.parametrize(
    "repeated",
    [
        *("<w:p>", "<w:p><w:r>", "<w:r>", "<w:sdt>", "<w:p><w:r><w:t>a", "</w:p>", "<w:p><w:r><"),
        "<!--" * 20,  # a comment of each of which the end was searched would take minutes
    ],
)
def test_xml_that_nothing_ends_is_read_and_kept(repeated, capsys):
    text = f"<w:p><w:r><w:t>One</w:t></w:r></w:p>{repeated * 2000}"
    content = packed({"word/document.xml": text.encode(), "word/header1.xml": b"\xff"})
    found = zipfile.ZipFile(io.BytesIO(translated(content, ".docx")))
    written = found.read("word/document.xml").decode()
    assert "ONE</w:t>" in written
    assert written.count("<w:sdt>") == text.count("<w:sdt>")
    assert found.read("word/header1.xml") == b"\xff"
    assert "word/header1.xml is not UTF-8, and stays as it is" in capsys.readouterr().err


def test_entities_of_a_declaration_are_not_expanded(tmp_path: Path):
    text = '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><text:p>a &e; b</text:p>'
    found = zipfile.ZipFile(io.BytesIO(translated(packed({"content.xml": text}), ".odt")))
    assert re.search(r"<text:p>.*&amp;e;.*</text:p>", found.read("content.xml").decode())
