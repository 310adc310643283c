"""Shows the comment behind a field, which tells its shape here, as the field's documentation."""

from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """`frame: Array  # [L, *frame_shape]` is documented as `[L, *frame_shape]`."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Takes the comment where there is no docstring."""
        if attr.docstring is None and attr.parent is not None and attr.parent.is_class:
            _, _, comment = attr.source.partition("  # ")
            if comment:
                attr.docstring = griffe.Docstring(comment, parent=attr, parser="google")
