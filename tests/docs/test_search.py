"""The search of the site, in a browser that opened it from the disk: words that people type lead to the page that answers."""

import json
import os
from pathlib import Path
from urllib.parse import unquote

import chromium
import pytest
import tools

SITE = Path(__file__).parents[2] / "build/site"

SEARCH = """(async () => {
  const box = document.querySelector("[data-md-component=search-query]");
  box.focus();
  box.value = %s;
  box.dispatchEvent(new Event("keyup", {bubbles: true}));
  for (let i = 0; i < 200; i++) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    const links = [...document.querySelectorAll("a.md-search-result__link")];
    if (links.length) return links.map((link) => new URL(link.href).pathname);
    if (document.querySelector(".md-search-result__meta").textContent.startsWith("No ")) return [];
  }
})()"""
"""Types a query, and returns the pages found, best first."""

ANSWERS = {
    "MFU": {"guides/torch.html", "method.html", "glossary.html"},
    "roofline": {"guides/torch.html", "method.html", "glossary.html"},
    "OOM": {"guides/memory.html", "rules/out-of-memory.html"},
    "straggler": {"rules/straggler.html"},
    "bubble": {"guides/rollout.html", "rules/rollout-tail.html"},
    "rollout is slow": {"guides/rollout.html"},
    "H2D": {"guides/torch.html", "rules/pageable-copies.html", "glossary.html"},
    "fragmentation": {"guides/memory.html", "rules/fragmentation.html"},
    "KV cache": {"guides/memory.html", "guides/rollout.html"},
    "preemption": {"guides/rollout.html", "method.html"},
    "staleness": {
        "rules/evicted-samples.html",
        "rules/rollouter-wait.html",
        "rules/trainer-wait.html",
        "guides/run-log.html",
    },
    "idle_by_step": {"sql.html", "python.html"},
}
"""By query, the pages of which one has to be the first."""

# Without a browser, only CI installs one: `make docs` changes nothing on the machine of a contributor.
if tools.HERE["docs"]() and (chromium.installed() or os.environ.get("CI")):

    @pytest.fixture(scope="module")
    def browser():
        with chromium.Browser() as running:
            yield running

    def search(browser, query, page="index.html"):
        opened = browser.page().look().open(SITE / page)
        found = opened.ask(SEARCH % json.dumps(query))
        assert opened.complaints() == []
        assert [url for url in opened.requests() if not url.startswith(("file:", "data:"))] == []
        return [unquote(path).removeprefix(f"{SITE}/") for path in found]

    @pytest.mark.parametrize("query", ANSWERS)
    def test_a_word_leads_to_the_page_that_answers(browser, query):
        found = search(browser, query)
        assert found
        assert found[0] in ANSWERS[query], found[:5]

    def test_search_works_on_pages_in_folders(browser):
        assert search(browser, "straggler", "guides/verl.html")[0] == "rules/straggler.html"

    def test_a_word_that_is_nowhere_is_not_found(browser):
        assert search(browser, "zzyzx") == []
