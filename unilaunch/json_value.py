"""The type of what JSON can hold; pydantic's own, which a rank must not import for an annotation."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import JsonValue
else:
    JsonValue = Any

__all__ = ["JsonValue"]
