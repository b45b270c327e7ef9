"""The browser's own form fields as Dash components: those of dcc trap the keyboard, and nest controls in controls.

``assets/native.js`` draws them. A component needs an id; its label is a `html.Label` for that id.
"""

from typing import Any

from dash.development.base_component import Component


class _Native(Component):
    """What Dash wants to know of a component; keyword arguments are its properties."""

    _namespace = "ladder_sim_native"

    def __init__(self, **properties: Any) -> None:
        self._type = type(self).__name__
        self._prop_names = self.available_properties = list(properties)
        self._valid_wildcard_attributes = self.available_wildcard_properties = []
        super().__init__(**properties)  # type: ignore[no-untyped-call]


class Select(_Native):
    """A list: ``options`` are values, labels with values, or labels with options of their own: a group.

    ``empty`` is the text of no choice, if it is allowed.
    """


class Choices(_Native):
    """Boxes or buttons in a group: ``type`` is "checkbox", with a list as ``value``, or "radio", with one."""


class FileField(_Native):
    """A button that a file can be dropped on; ``file`` holds the latest: name, contents as a data URL, and number."""
