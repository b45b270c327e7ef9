"""What the reader of an answer should know: the end-to-end runs behind it, and its warnings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ladder_sim.confidence import Confidence
from ladder_sim.specs.scenario_warnings import UNUSED, Caution

# names before a warning; the others are counted
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """The end of every answer, and `validated` and `warnings` in its JSON."""

    confidences: Mapping[str, Confidence]
    """Confidence of each part of the answer, by the part's name."""
    about: tuple[str, ...] = ()
    """Warnings about the answer as a whole."""
    used: frozenset[str] = frozenset()
    """Settings that something else next to it depends on: no warning says that they change nothing."""

    @property
    def warnings(self) -> list[str]:
        """Each once, with the names of the parts that it is about, unless it is about all."""
        names: dict[str, list[str]] = {}
        for name, confidence in self.confidences.items():
            for text in filter(self._applies, confidence.warnings):
                if text not in self.about:
                    names.setdefault(text, []).append(name)
        everywhere = len(self.confidences)
        return [
            *filter(self._applies, self.about),
            *(
                text if len(each) == everywhere or _names(text, each) else _of_parts(text, each)
                for text, each in names.items()
            ),
        ]

    def _applies(self, text: str) -> bool:
        """Whether a warning still holds next to what else depends on its setting."""
        return not (isinstance(text, Caution) and text.kind == UNUSED and text.name in self.used)

    def fields(self) -> dict[str, Any]:
        """Return the notes as in JSON; empty if an answer depends on nothing but measurements."""
        if not self.confidences and not self.about:
            return {}
        validated = {name: dict(confidence.validated) for name, confidence in self.confidences.items()}
        return {
            "validated": validated if len(validated) > 1 else next(iter(validated.values()), {}),
            "warnings": self.warnings,
        }


def _names(text: str, parts: list[str]) -> bool:
    """Whether a warning names the parts that it is about itself."""
    return isinstance(text, Caution) and all(map(text.names, parts))


def _of_parts(text: str, parts: list[str]) -> str:
    """Return a warning that starts with the names of the parts it is about."""
    return Caution(f"{_listed(parts)}: {text}", getattr(text, "kind", ""))


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
