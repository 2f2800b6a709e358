"""Which values are secret: by whole words of their names, and by their own form."""

import pytest

from unilaunch.spec import redaction
from unilaunch.spec.redaction import redact

NAMES = (
    "HF_TOKEN my_passwd DB_PASS AUTHORIZATION auth api-key api_key apiKey PGPASSWORD MYSQL_PWD SSHPASS WANDB_API_KEY "
    "OPENAI_API_KEYS AWS_SECRET_ACCESS_KEY KEY SECRET_KEY_BASE hf-token trainer.token accessToken client_secret JWT"
)
INNOCENT = (
    "MAX_TOKENS MONKEY keyframes max-tokens TOKENIZERS_PARALLELISM PWD OLDPWD use-token key_file GIT_AUTHOR_NAME "
    "AWS_WEB_IDENTITY_TOKEN_FILE SSH_AUTH_SOCK GOOGLE_APPLICATION_CREDENTIALS num-key-value-heads key-dim sep_token "
    "eos-token-id pass-rate public_key KEYBOARD sort-key bypass compass XAUTHORITY num_pass max_token_len MASTER_PORT"
)
SHOWN = {
    "HF_TOKEN=s=3": "HF_TOKEN=***", "HF_TOKEN": "HF_TOKEN", "--mpi-arg=MY_TOKEN=s": "--mpi-arg=MY_TOKEN=***",
    "-genv MY_KEY=s": "-genv MY_KEY=***", "--auth=x": "--auth=***", "--max-tokens=5": "--max-tokens=5",
    "USE_AUTH=true": "USE_AUTH=true", "--auth=none": "--auth=none", "--lr=3": "--lr=3",
    "postgres://u:pw@host/db": "postgres://u:***@host/db", "--db=redis://:pw@h": "--db=redis://:***@h",
    "http://localhost:4318": "http://localhost:4318", "git@github.com:a/b": "git@github.com:a/b",
    "https://h/x?token=abc": "https://h/x?token=***", "Authorization: Bearer abcdefgh": "Authorization: ***",
    '--spec={"api_key": "s"}': '--spec={"api_key": ***', "train.py:token": "train.py:token",
    "x=hf_abcdefghijklmnopqrst": "x=***", "x=eyJhbGciOiJI.eyJzdWIiOiIx.abc": "x=***",
}  # fmt: skip


def test_names_and_values_of_secrets() -> None:
    """Names by whole words: a monkey holds no key; values by the name before them, or by their own form."""
    assert [name for name in NAMES.split() if not redaction.is_secret_name(name)] == []
    assert [name for name in INNOCENT.split() if redaction.is_secret_name(name)] == []
    assert {word: redact(word) for word in SHOWN} == SHOWN


def test_secrets_among_words_variables_and_fields() -> None:
    """The word behind a secret's name is hidden: not an option, a switch's value, or the word after the next."""
    line = "train.py --pass s t -api_key s --use-token --lr 3 --auth false --token"
    shown = "train.py --pass *** t -api_key *** --use-token --lr 3 --auth false --token"
    assert " ".join(redaction.redact_words(line.split())) == shown
    export = ["HF_TOKEN=s", "OTHER_TOKEN", "A=1", "DB=postgres://u:pw@host", "MAX_TOKENS=4096"]
    assert redaction.secret_variables(export) == ["HF_TOKEN", "DB"]
    assert redaction.without_secret_values(export) == ("HF_TOKEN", "OTHER_TOKEN", "A=1", "DB", "MAX_TOKENS=4096")
    fields = {"options": {"api_key": "s", "lr": 0.1, "urls": ["http://u:pw@h"]}, "args": ["--pass", "s"], "seed": 3}
    assert redaction.redact_fields(fields) == {
        "options": {"api_key": "***", "lr": 0.1, "urls": ["http://u:***@h"]}, "args": ["--pass", "***"], "seed": 3,
    }  # fmt: skip
    words = ["--api-key=s", "--pass", "s", "--lr", "3", "postgres://u:pw@h", "db.password=s"]
    assert redaction.secret_arguments(words) == {
        0: ("--api-key=", "API_KEY"), 2: ("", "PASS"), 5: ("", "ARGUMENT_6"), 6: ("db.password=", "DB_PASSWORD"),
    }  # fmt: skip


@pytest.mark.timeout(20)  # seconds; it takes a fifth of one
@pytest.mark.parametrize("text", ["a", "a-", "a.1-", "1a", "a://"])
def test_a_long_text_takes_time_in_proportion(text: str) -> None:
    """An argument may have 100,000 letters: each was a new beginning, and `launch` stood for minutes."""
    assert redact(text * 100_000) == text * 100_000
