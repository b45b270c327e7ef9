"""axe-core in a page that a browser shows."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

# WCAG 2.1, levels A and AA
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")


def violations(page: Page) -> list[str]:
    """Each rule that an element breaks, with the element."""
    results = Axe().run(page, options={"runOnly": list(RULES), "resultTypes": ["violations"]}).response
    # a page without checks would break none
    assert results["passes"]
    return [f"{rule['id']}: {node['html']}" for rule in results["violations"] for node in rule["nodes"]]
