"""The site of documentation, made by Sphinx: ``make docs-site``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.search.en import SearchEnglish

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import messages  # noqa: E402 - found by the line above

project = "tvm-byoc-dnnl"
html_title = project
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
html_theme = "furo"
myst_heading_anchors = 4
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
default_role = "code"
html_search_language = "byoc"

_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)*[\w./-]+)(#[\w-]+)?\)")


def _links(app: Any, name: str, source: list[str]) -> None:
    """A link to a file outside of docs/ becomes its name: the site has no copy of it."""
    folder = (ROOT / "docs" / name).parent

    def link(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return match[0]
        return f"{match[1]} (`{target.relative_to(ROOT)}`)"

    source[0] = _LINK.sub(link, source[0]).replace("<!-- messages of the package -->", messages.render())


#: what a word is searched as, so that both spellings find it: end of a word → another end
_SPELLINGS = {r"is(e|ed|es|er|ers|ing|ation|ations)$": "iz", r"our(s|ed|ing|al|able)?$": "or"}
_SAME = "our|four|hours?|your|precise|noise|raised?|rise|wise|otherwise|likewise|exercise|promise"


class _BothSpellings(SearchEnglish):
    """English whose words have one form for both spellings, in the index and in the browser."""

    lang = "byoc"
    js_stemmer_rawcode = ""
    js_stemmer_code = (
        "var Stemmer = function() {\n  this.stemWord = function(word) {\n"
        f"    if (/^({_SAME})$/.test(word)) return word;\n"
        + "".join(f"    word = word.replace(/{end}/, '{to}$1');\n" for end, to in _SPELLINGS.items())
        + "    return word;\n  }\n}\n"
    )

    def stem(self, word: str) -> str:
        word = word.lower()
        if not re.fullmatch(_SAME, word):
            for end, to in _SPELLINGS.items():
                word = re.sub(end, rf"{to}\1", word)
        return word


def _picture(app: Any, error: Exception | None) -> None:
    """The drawing on the first page."""
    if error is None:
        import onnx

        import tvm_byoc_dnnl as byoc
        from tvm_byoc_dnnl.testing.models import find_model

        model = Path(app.doctreedir) / "squeezenet.onnx"
        onnx.save(find_model("squeezenet").read(), model)
        byoc.explain(model).to_html(Path(app.outdir) / "_static" / "squeezenet.html")


def setup(app: Any) -> None:
    app.add_search_language(_BothSpellings)
    app.connect("source-read", _links)
    app.connect("build-finished", _picture)
