"""Which values are secrets, by their names."""

import pytest

from unilaunch.exports import secrets, without_secrets

WORDS = [
    ("HF_TOKEN=s=3", "HF_TOKEN"), ("my_passwd=s", "my_passwd"), ("A=1", "A=1"), ("HF_TOKEN", "HF_TOKEN"),
    ("-x=MY_TOKEN=s", "-x=MY_TOKEN"), ("--mpi-arg=MY_TOKEN=s", "--mpi-arg=MY_TOKEN"), ("-x A=1", "-x A=1"),
    ("-genv MY_KEY=s", "-genv MY_KEY"), ("--api-key=s", "--api-key"), ("--token=s", "--token"),
    ("--keyframes=3", "--keyframes=3"), ("--monkey=1", "--monkey=1"), ("--max-tokens=5", "--max-tokens=5"),
    ("TOKENIZERS_PARALLELISM=false", "TOKENIZERS_PARALLELISM=false"),
]  # fmt: skip


@pytest.mark.parametrize(("word", "expected"), WORDS, ids=[word for word, _ in WORDS])
def test_a_value_is_hidden_by_its_own_name(word: str, expected: str) -> None:
    """A variable's within an option too; an option's only if its name ends so."""
    assert without_secrets([word]) == (expected,)


def test_the_word_after_the_name_of_a_secret_is_hidden() -> None:
    """Not another option, and not the word after the next."""
    words = ["train.py", "--hf-token", "s", "t", "-api_key", "s", "--use-token", "--lr", "3", "--token"]
    expected = ["train.py", "--hf-token", "***", "t", "-api_key", "***", "--use-token", "--lr", "3", "--token"]
    assert without_secrets(words) == tuple(expected)


def test_secrets_are_variables_with_a_value() -> None:
    assert secrets(["HF_TOKEN=s", "OTHER_TOKEN", "A=1", "B=X_TOKEN=2"]) == ["HF_TOKEN"]
