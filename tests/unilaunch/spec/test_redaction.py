"""Which values are secret: by whole words of their names, and by their own form."""

import pytest

from unilaunch.spec.redaction import (
    is_secret_name,
    redact,
    redact_fields,
    redact_words,
    secret_arguments,
    secret_variables,
    without_secret_values,
)

NAMES = (
    "HF_TOKEN my_passwd DB_PASS AUTHORIZATION auth api-key api_key apiKey PGPASSWORD MYSQL_PWD SSHPASS WANDB_API_KEY "
    "OPENAI_API_KEYS AWS_SECRET_ACCESS_KEY KEY SECRET_KEY_BASE hf-token trainer.token accessToken client_secret JWT"
)
INNOCENT = (
    "MAX_TOKENS MONKEY keyframes max-tokens TOKENIZERS_PARALLELISM PWD OLDPWD use-token key_file GIT_AUTHOR_NAME "
    "AWS_WEB_IDENTITY_TOKEN_FILE SSH_AUTH_SOCK GOOGLE_APPLICATION_CREDENTIALS num-key-value-heads key-dim sep_token "
    "eos-token-id pass-rate public_key KEYBOARD sort-key bypass compass XAUTHORITY num_pass max_token_len MASTER_PORT"
)


def test_names_of_secrets() -> None:
    """By whole words: a monkey holds no key."""
    assert [name for name in NAMES.split() if not is_secret_name(name)] == []
    assert [name for name in INNOCENT.split() if is_secret_name(name)] == []


@pytest.mark.parametrize(("word", "expected"), [
    ("HF_TOKEN=s=3", "HF_TOKEN=***"), ("HF_TOKEN", "HF_TOKEN"), ("--mpi-arg=MY_TOKEN=s", "--mpi-arg=MY_TOKEN=***"),
    ("-genv MY_KEY=s", "-genv MY_KEY=***"), ("--auth=x", "--auth=***"), ("--max-tokens=5", "--max-tokens=5"),
    ("USE_AUTH=true", "USE_AUTH=true"), ("--auth=none", "--auth=none"), ("--lr=3", "--lr=3"),
    ("postgres://u:pw@host/db", "postgres://u:***@host/db"), ("--db=redis://:pw@h", "--db=redis://:***@h"),
    ("http://localhost:4318", "http://localhost:4318"), ("git@github.com:a/b", "git@github.com:a/b"),
    ("https://h/x?token=abc", "https://h/x?token=***"), ("Authorization: Bearer abcdefgh", "Authorization: ***"),
    ('--spec={"api_key": "s"}', '--spec={"api_key": ***'), ("train.py:token", "train.py:token"),
    ("x=hf_abcdefghijklmnopqrst", "x=***"), ("x=eyJhbGciOiJI.eyJzdWIiOiIx.abc", "x=***"),
])  # fmt: skip
def test_a_secret_value_is_hidden_in_a_word(word: str, expected: str) -> None:
    assert redact(word) == expected


def test_the_word_behind_the_name_of_a_secret_is_hidden() -> None:
    """Not another option, not the value of a switch, and not the word after the next."""
    line = "train.py --pass s t -api_key s --use-token --lr 3 --auth false --token"
    shown = "train.py --pass *** t -api_key *** --use-token --lr 3 --auth false --token"
    assert " ".join(redact_words(line.split())) == shown


def test_a_secret_variable_keeps_its_name_only() -> None:
    export = ["HF_TOKEN=s", "OTHER_TOKEN", "A=1", "DB=postgres://u:pw@host", "MAX_TOKENS=4096"]
    assert secret_variables(export) == ["HF_TOKEN", "DB"]
    assert without_secret_values(export) == ("HF_TOKEN", "OTHER_TOKEN", "A=1", "DB", "MAX_TOKENS=4096")


def test_fields_are_searched_to_their_depth() -> None:
    fields = {"options": {"api_key": "s", "lr": 0.1, "urls": ["http://u:pw@h"]}, "args": ["--pass", "s"], "seed": 3}
    assert redact_fields(fields) == {
        "options": {"api_key": "***", "lr": 0.1, "urls": ["http://u:***@h"]}, "args": ["--pass", "***"], "seed": 3,
    }  # fmt: skip


def test_each_secret_argument_has_a_variable_for_a_job_file() -> None:
    words = ["--api-key=s", "--pass", "s", "--lr", "3", "postgres://u:pw@h", "db.password=s"]
    assert secret_arguments(words) == {
        0: ("--api-key=", "API_KEY"), 2: ("", "PASS"), 5: ("", "ARGUMENT_6"), 6: ("db.password=", "DB_PASSWORD"),
    }  # fmt: skip


@pytest.mark.timeout(20)  # seconds; it takes a fifth of one
@pytest.mark.parametrize("text", ["a", "a-", "a.1-", "1a", "a://"])
def test_a_long_text_takes_time_in_proportion(text: str) -> None:
    """An argument may have 100,000 letters: each was a new beginning, and `launch` stood for minutes."""
    assert redact(text * 100_000) == text * 100_000
