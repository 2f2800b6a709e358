"""A stand-in for a framework that this machine has no device for: it records the public calls, and does nothing."""

from typing import Any


class Recorded:
    """Records every call by its dotted name; what is not called is another recorder."""

    def __init__(self, name: str = "", calls: list[tuple[Any, ...]] | None = None, **answers: Any) -> None:
        self.__name = name
        self.__answers = answers
        self.calls: list[tuple[Any, ...]] = [] if calls is None else calls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        dotted = f"{self.__name}.{name}".removeprefix(".")
        return Recorded(dotted, self.calls, **self.__answers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record the call; the keywords in the order of their names."""
        self.calls.append((self.__name, *args, *sorted(kwargs.items())))
        return self.__answers.get(self.__name.replace(".", "_"))
