"""What a reader sees of HTML."""

import re
from html import unescape


def texts(html: str) -> str:
    """All text in HTML, without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())
