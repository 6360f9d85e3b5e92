"""The site that `make docs` built: everything that the package has a page for is on it, and it asks nothing of other servers."""

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest
import tools

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build/site"

if tools.HERE["docs"]():
    from tracekit.analyses import list_measured_tables, rules
    from tracekit.cli import main
    from tracekit.health.problems import PROBLEMS
    from tracekit.model.tables import RAW
    from tracekit.render.words import MEANINGS

    class Page(HTMLParser):
        """What a page loads, what it links, and its anchors."""

        def __init__(self, path):
            super().__init__()
            self.loads, self.links, self.anchors = [], [], set()
            self.feed(path.read_text())

        def handle_starttag(self, tag, attrs):
            given = dict(attrs)
            self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
            if tag == "a" and given.get("href"):
                self.links.append(given["href"])
            elif tag == "link" and given.get("rel") != "canonical" and given.get("href"):
                self.loads.append(given["href"])
            elif given.get("src"):
                self.loads.append(given["src"])

    PAGES = {path: Page(path) for path in SITE.rglob("*.html") if path.relative_to(SITE).parts[0] != "repo"}

    def text_of(name):
        return unescape(re.sub(r"<[^>]+>", "", (SITE / name).read_text()))

    def test_nothing_is_loaded_from_elsewhere():
        assert len(PAGES) > 50
        for path, page in PAGES.items():
            away = [url for url in page.loads if urlsplit(url).netloc]
            assert away == [], path
        sheets = [path.read_text() for path in SITE.rglob("*.css") if path.relative_to(SITE).parts[0] != "repo"]
        assert sheets
        assert not any(re.search(r"url\(['\"]?https?:|@import", sheet) for sheet in sheets)

    def test_every_link_and_picture_is_there():
        for path, page in PAGES.items():
            if path.name == "404.html":
                continue
            for url in (*page.links, *page.loads):
                parts = urlsplit(url)
                if parts.scheme or parts.netloc:
                    continue
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                assert target.exists(), (path, url)
                if parts.fragment and target in PAGES:
                    assert unquote(parts.fragment) in PAGES[target].anchors, (path, url)

    @pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.id)
    def test_every_rule_has_its_page(rule):
        assert rule.title in text_of(f"rules/{rule.id}.html")
        assert f"{rule.number} {rule.id} {rule.title}" in " ".join(text_of("rules/index.html").split())

    def test_every_table_has_its_columns():
        for name, tables in (("raw", RAW), ("measured", list_measured_tables())):
            text = text_of(f"tables/{name}.html")
            for table in tables:
                assert set(re.findall(r"\w+", " ".join(table.columns))) <= {*re.findall(r"\w+", text)}
                assert table.name in PAGES[SITE / f"tables/{name}.html"].anchors

    def test_every_command_has_its_options():
        text = text_of("commands.html")
        for name in main.list_commands(click.Context(main)):
            command = main.get_command(click.Context(main), name)
            assert f"tracekit {name}" in text
            for parameter in command.params:
                if isinstance(parameter, click.Option) and not parameter.hidden:
                    assert parameter.opts[-1] in text

    def test_problems_and_words_are_those_of_the_program():
        assert all(code in text_of("troubleshooting.html") for code in PROBLEMS)
        assert all(meaning in text_of("glossary.html") for meaning in MEANINGS.values())

    def test_lists_and_tables_are_such():
        for path in PAGES:
            prose = re.sub(r"<(pre|script)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
            loose = re.findall(r"^(?:<p>)?(?:- |\| |\d+\. ).*", prose, re.MULTILINE)
            assert loose == [], path

    def test_public_functions_are_described():
        text = text_of("api.html")
        for promise in ("Analyze a profile directory", "smallest relative change that matters"):
            assert promise in text

    @pytest.mark.parametrize(("page", "shown"), [("first_look", "Top issues"), ("before_after", "1.62× slower")])
    def test_notebooks_are_shown_with_what_they_gave(page, shown):
        assert shown in text_of(f"notebooks/{page}.html")
        assert (page == "first_look") == ("data:image/png" in (SITE / f"notebooks/{page}.html").read_text())
