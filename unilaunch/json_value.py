"""The type of JSON values. Type checkers use pydantic's type; a rank does not import pydantic for an annotation."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import JsonValue
else:
    JsonValue = Any

__all__ = ["JsonValue"]
