"""The long description is the README without what leads into the source tree, which a package index does not show."""

import re
from pathlib import Path

from setuptools import setup

text = Path(__file__).with_name("README.md").read_text("utf-8")
# pictures go, links keep their words
text = re.sub(r"^!\[[^]]*\]\((?!https:).*\n\n", "", text, flags=re.MULTILINE)
text = re.sub(r"\[([^]]*)\]\((?!https:)[^)]*\)", r"\1", text)
setup(long_description=text, long_description_content_type="text/markdown")
