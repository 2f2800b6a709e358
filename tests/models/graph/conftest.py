"""What the tests share: torch's default type, what is logged, and real data sets."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from loguru import logger


@pytest.fixture
def float64() -> Iterator[None]:
    """Torch's default type, while the test runs."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What is logged while the test runs."""
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message}", level="WARNING")
    yield lines
    logger.remove(sink)


@pytest.fixture(scope="session")
def shared_datasets() -> Path:
    """The folder of real data sets that lies beside the checkout."""
    folder = Path(__file__).parents[3].parent / "shared" / "datasets"
    if not folder.is_dir():
        pytest.skip(f"no shared datasets: {folder}")
    return folder
