"""The rules that a page breaks, by axe-core: rules of WCAG 2.2 (A and AA) and of good practice."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from playwright.sync_api import Page


LOOK: Final = """async (rules) => {
  const options = { resultTypes: ["violations"], preload: false, iframes: false, selectors: false };
  if (rules) options.runOnly = { type: "rule", values: rules };
  const { violations } = await axe.run(document, options);
  return violations.map(({ id, impact, nodes }) => ({
    id, impact, nodes: nodes.map(({ html, failureSummary }) => `${html}: ${failureSummary}`),
  }));
}"""


@cache
def _script() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")


def axe_findings(page: Page, *rules: str) -> list[str]:
    """A line for each broken rule among ``rules`` (none: all rules). The browser itself runs
    axe-core, because the policy of the page allows no foreign scripts."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(_script())
    found: list[dict[str, Any]] = page.evaluate(LOOK, list(rules) or None)
    return [f"{each['id']} ({each['impact']}): {'; '.join(each['nodes'][:3])}" for each in found]
