"""No secret leaves: neither where its name stands beside it, nor anywhere else."""

import base64
import json
from urllib.parse import quote

import pytest

from sglang_pd.doctor import masking
from sglang_pd.doctor.masking import MASK, is_secret, masked

KEY = "sk-live-4f/2+b=9"


@pytest.mark.parametrize(
    "name",
    ["OPENAI_API_KEY", "api_key", "--admin-api-key", "HF_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY",
     "Authorization", "GOOGLE_CREDENTIALS_JSON", "hf-token", "ssl-keyfile-password", "apiKey"],
)  # fmt: skip
def test_names_of_secrets(name):
    assert is_secret(name, "x1y2")


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_total_tokens", "65536"), ("--max-total-tokens", "4096"), ("tokenizer_path", "/models/x"), ("INDEX_K", "1"),
     ("TOKENIZERS_PARALLELISM", "false"), ("SGLANG_DSV4_BF16_INDEX_K_DECODE_BLOCK_KEYS", "64"), ("api_key", "None"),
     ("SGLANG_PD_HOME", "/x"), ("ssl_keyfile", "/etc/k.pem"), ("api_key", ""), ("page_size", "16"),
     ("stop_token_ids", "2")],
)  # fmt: skip
def test_names_of_settings(name, value):
    assert not is_secret(name, value)


def test_a_number_may_be_a_password_but_not_a_count():
    assert is_secret("API_KEY", "12345678")
    assert is_secret("DB_PASSWORD", "12345678")
    assert not is_secret("tokens", "12345678")


EVIDENCE = {
    "command": [
        "python",
        "-m",
        "sglang.launch_server",
        "--api-key",
        KEY,
        "--admin-api-key=adm-99-x",
        "--port",
        "30000",
    ],
    "environment": {"HF_TOKEN": "hf_abcdef", "SGLANG_PD_HOME": "/srv", "PROXY": "http://joe:hunter22@proxy:3128/"},
    "log": [
        f"server_args={{'api_key': '{KEY}', 'page_size': 1}}",
        f"got Authorization: Bearer {KEY} from 10.0.0.9",
        "authorization=Basic am9lOmh1bnRlcjIy",
        f"curl 'http://10.0.0.1/?key={quote(KEY, safe='')}'",
        "the proxy said no to hunter22",
        f"nothing here names it, but {KEY} is here",
        "PASSWORD=abc",
    ],
    "body": {"api_key": KEY, "nested": [{"admin_api_key": "adm-99-x"}], "note": "hf_abcdef is the token", "n": 3},
}


@pytest.mark.parametrize("secret", [KEY, quote(KEY, safe=""), "adm-99-x", "hf_abcdef", "hunter22", "am9lOmh1bnRlcjIy"])
def test_evidence_has_no_trace_of_a_secret(secret):
    assert secret in json.dumps(EVIDENCE)
    assert secret not in json.dumps(masked(EVIDENCE))


def test_what_is_no_secret_stays():
    found = masked(EVIDENCE)
    assert found["command"][:4] == ["python", "-m", "sglang.launch_server", "--api-key"]
    assert found["command"][4:] == [MASK, f"--admin-api-key={MASK}", "--port", "30000"]
    assert found["environment"] == {
        "HF_TOKEN": MASK,
        "SGLANG_PD_HOME": "/srv",
        "PROXY": f"http://joe:{MASK}@proxy:3128/",
    }
    assert found["log"][0] == f"server_args={{'api_key': '{MASK}', 'page_size': 1}}"
    assert found["log"][1] == f"got Authorization: Bearer {MASK} from 10.0.0.9"
    assert found["log"][6] == f"PASSWORD={MASK}"
    assert found["body"]["n"] == 3


def test_a_secret_that_stands_nowhere_by_name_is_given():
    """Such as one of an environment of which nothing is kept."""
    secrets = masking.of_environment({"MY_SERVICE_TOKEN": "t0pS3cret", "HOME": "/root"})
    assert masked({"log": ["t0pS3cret was used"]}, secrets) == {"log": [f"{MASK} was used"]}


def test_a_short_secret_is_masked_in_its_place_and_words_are_left_alone():
    data = {"command": ["--api-key", "ab"], "text": "a cab"}
    assert masked(data) == {"command": ["--api-key", MASK], "text": "a cab"}


def test_a_secret_that_reads_as_a_number_leaves_no_number():
    assert masked({"api_key": "31337421", "port": 31337421, "text": "31337421"}) == {
        "api_key": MASK, "port": 0, "text": MASK,
    }  # fmt: skip


def test_masking_twice_changes_nothing_more():
    once = masked(EVIDENCE)
    assert masked(once) == once


def test_of_two_secrets_of_which_one_begins_the_other_nothing_is_left():
    found = masked({"log": "abcdef-suffix"}, {"abcdef", "abcdef-suffix"})
    assert found == {"log": MASK}


def test_basic_authorization_is_masked_as_it_is_sent():
    sent = base64.b64encode(b"joe:secret").decode()
    assert sent not in json.dumps(masked({"headers": {"Authorization": f"Basic {sent}"}}))
