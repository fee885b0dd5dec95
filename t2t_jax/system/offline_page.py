"""HTML pages in one file, which a browser shows without a network.

A page has a body, a style and a script: the files NAME.html, NAME.css and NAME.js of a package.
`page_frame.*` beside this file have what all pages share: the frame, which blocks all downloads,
the colours, and the functions that make elements.
"""

import html
import json
from importlib.resources import files
from typing import Any


def offline_page(package: str | None, name: str, title: str, data: Any) -> str:
    """Return a page, whose script reads the data as `data`.

    Args:
      package: the package with the page's files.
      name: the name of these files, without their endings.
      data: the contents of the page, of JSON's types.
    """
    own, shared = files(package or ""), files(__package__ or "")
    frame = (shared / "page_frame.html").read_text("utf-8")
    for mark, ending in (("STYLE", "css"), ("SCRIPT", "js")):
        both = (shared / f"page_frame.{ending}", own / f"{name}.{ending}")
        frame = frame.replace(f"/*{mark}*/", "".join(file.read_text("utf-8") for file in both))
    frame = frame.replace("/*BODY*/", (own / f"{name}.html").read_text("utf-8"))
    frame = frame.replace("/*TITLE*/", html.escape(title))
    # Without `<`, the data cannot begin a tag or end the script.
    written = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return frame.replace("/*DATA*/", written)
