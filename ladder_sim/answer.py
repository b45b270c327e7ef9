"""What the functions of the package return: answers, which print as their commands do."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ladder_sim.errors import MissingDependencyError
from ladder_sim.system.files import write_file

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
    import plotly.graph_objects as go

    from ladder_sim.report.report import Report


Key = TypeVar("Key")
Part = TypeVar("Part")


def frame_of(data: Any) -> "pandas.DataFrame":
    """Return rows, or columns by name, as a pandas DataFrame; raise MissingDependencyError without pandas."""
    try:
        import pandas
    except ImportError:
        raise MissingDependencyError("to_frame needs pandas", hint="pip install pandas") from None
    return pandas.DataFrame(data)


class Answer:
    """An answer: a text when printed, a page in a notebook, and plain values.

    Simulators know nothing of printing: what an answer looks like is a `Report`, found when it is shown.
    """

    __slots__ = ()

    shown_by: ClassVar[str]
    """Module and class of its `Report`, in `ladder_sim.report`, e.g. "prediction.PredictionReport"."""

    @property
    def report(self) -> "Report[Any]":
        """How it looks."""
        module, _, name = self.shown_by.partition(".")
        report: Report[Any] = getattr(import_module(f"ladder_sim.report.{module}"), name)(self)
        return report

    @property
    def summary(self) -> str:
        """The first sentence of its text, for a log or a test."""
        return self.report.brief.sentence

    def explain(self) -> str:
        """Return the text that the command of this answer prints with ``--explain``."""
        return self.report.text(explain=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that the command of this answer prints with ``--json``."""
        return self.report.document().to_dict()

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return the lines that the command of this answer prints with ``--csv``, and write them to `path` if given."""
        text = self.report.values().to_csv()
        if path is not None:
            write_file(Path(path), text)
        return text

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with a row for each line of ``--csv`` and the columns of that.

        Raises MissingDependencyError without pandas.
        """
        return frame_of(list(self.report.values().rows))

    def plot(self, kind: str | None = None) -> "go.Figure":
        """Return a plotly Figure, as the command draws it; raise UnknownNameError for a kind that this answer lacks."""
        return self.report.figure(kind)

    def __str__(self) -> str:
        return self.report.text()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary}>"

    def _repr_html_(self) -> str:
        return self.report.html()


class Listed(Answer, Sequence[Part]):
    """An answer that is a sequence of its parts."""

    __slots__ = ()

    parts: ClassVar[str]
    """Name of the field that holds them."""

    def __getitem__(self, index: Any) -> Any:
        return getattr(self, self.parts)[index]

    def __len__(self) -> int:
        return len(getattr(self, self.parts))


class Named(Answer, Mapping[Key, Part]):
    """An answer that has its parts by name."""

    __slots__ = ()

    parts: ClassVar[str]
    """Name of the field that holds them."""

    def __getitem__(self, name: Key) -> Part:
        part: Part = getattr(self, self.parts)[name]
        return part

    def __iter__(self) -> Iterator[Key]:
        return iter(getattr(self, self.parts))

    def __len__(self) -> int:
        return len(getattr(self, self.parts))
