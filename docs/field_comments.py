"""Shows the comment behind a field, which says its shape here, as the field's documentation."""

import re
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """`frame: Array  # [L, 84, 84], one frame` is documented as `[L, 84, 84]`, one frame."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Takes the comment where there is no docstring."""
        if attr.docstring is not None or attr.parent is None or not attr.parent.is_class:
            return
        _, _, comment = attr.source.partition("  # ")
        if comment:
            shape_as_code = re.sub(r"^(\[[^\]]*\])", r"`\1`", comment)
            attr.docstring = griffe.Docstring(shape_as_code, parent=attr, parser="google")
