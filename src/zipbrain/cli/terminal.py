"""`Console`: rich's, through which every command writes, so that no name from outside commands the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import console
from rich.segment import Segment
from rich.text import Text

from zipbrain.text import printable


class Console(console.Console):
    """A console that shows control characters of texts as words (``\\x1b``); those of styles are its own."""

    def render(
        self, renderable: console.RenderableType, options: console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Segments of what is shown, each text of them printable."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable() or segment.text == "\n":
                yield segment
            else:
                words = "\n".join(printable(line) for line in segment.text.split("\n"))
                yield segment._replace(text=words)


def say(what: object) -> None:
    """Print something as plain text, each of its lines whole however narrow the terminal."""
    Console(highlight=False).print(Text(str(what)), soft_wrap=True)
