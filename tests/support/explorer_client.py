"""Talks to the explorer as its page does, without a browser."""

import re
from html import unescape
from typing import Any

from werkzeug.test import Client, TestResponse


class Page:
    """Callbacks of an app by what they are about."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._callbacks = [
            entry for entry in client.get("/_dash-dependencies").json or [] if not entry["clientside_function"]
        ]

    def payload(self, output: str, inputs: dict[str, Any], state: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the page sends when the first of some inputs changes."""
        callback = next(entry for entry in self._callbacks if output in entry["output"])
        names = callback["output"].strip(".").split("...")
        outputs = [
            {"id": name.rpartition(".")[0], "property": name.rpartition(".")[2].partition("@")[0]} for name in names
        ]
        values = {**inputs, **(state or {})}
        return {
            "output": callback["output"],
            "outputs": outputs if callback["output"].startswith("..") else outputs[0],
            "inputs": [{**item, "value": values.get(item["id"])} for item in callback["inputs"]],
            "state": [{**item, "value": values.get(item["id"])} for item in callback["state"]],
            "changedPropIds": [
                f"{item['id']}.{item['property']}" for item in callback["inputs"] if item["id"] in inputs
            ][:1],
        }

    def send(self, payload: Any) -> TestResponse:
        """Any body."""
        return self.client.post("/_dash-update-component", json=payload)

    def views(self, query: object) -> dict[str, str]:
        """The headline's views for a query: HTML by element."""
        views: dict[str, str] = self.ask("answer.data", query)["answer"]["data"]["views"]
        return views

    def ask(self, output: str, query: object, **more: Any) -> dict[str, Any]:
        """What the page gets for a query."""
        response = self.send(self.payload(output, {"query": query, "settled": query, "theme": "light", **more}))
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.get_json()["response"]
        return answer


def texts(component: Any) -> str:
    """All text in a component or in HTML, as it was sent."""
    if isinstance(component, dict):
        return texts(component.get("props", {}).get("children"))
    if isinstance(component, list):
        return " ".join(filter(None, map(texts, component)))
    return "" if component is None else unescape(re.sub(r"<[^>]*>", " ", str(component)))
