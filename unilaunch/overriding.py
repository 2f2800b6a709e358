"""`override` marks a method that replaces a method of the base class, for type checkers.

Importing the one of typing_extensions takes 8 ms, since it imports inspect; a rank needs nothing else from there.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import override
else:  # at run time the decorator does nothing
    from typing import final as override

__all__ = ["override"]
