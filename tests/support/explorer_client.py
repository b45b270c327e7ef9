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
            one for one in client.get("/_dash-dependencies").json or [] if not one["clientside_function"]
        ]

    def payload(self, output: str, inputs: dict[str, Any], state: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the page sends when the first of some inputs changes."""
        found = next(one for one in self._callbacks if output in one["output"])
        names = found["output"].strip(".").split("...")
        outputs = [
            {"id": name.rpartition(".")[0], "property": name.rpartition(".")[2].partition("@")[0]} for name in names
        ]
        values = {**inputs, **(state or {})}
        return {
            "output": found["output"],
            "outputs": outputs if found["output"].startswith("..") else outputs[0],
            "inputs": [{**one, "value": values.get(one["id"])} for one in found["inputs"]],
            "state": [{**one, "value": values.get(one["id"])} for one in found["state"]],
            "changedPropIds": [f"{one['id']}.{one['property']}" for one in found["inputs"] if one["id"] in inputs][:1],
        }

    def send(self, payload: Any) -> TestResponse:
        """Any body."""
        return self.client.post("/_dash-update-component", json=payload)

    def views(self, query: object) -> dict[str, str]:
        """The headline's views for a query: HTML by element."""
        found: dict[str, str] = self.ask("answer.data", query)["answer"]["data"]["views"]
        return found

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
