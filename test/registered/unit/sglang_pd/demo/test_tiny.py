import json

import pytest

from sglang_pd.demo import manifest
from sglang_pd.demo.tiny import build_tiny, byte_characters

TOKENS = 48
PAGE = 16
PROMPTS = [
    "Hello",
    "What is the capital of France?",
    "a" * 64,
    "A request waits in the queue until its pages are there. Then they are read, in order, once. " * 4,
]
LONG = PROMPTS[-1]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def tokenizer(path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


@pytest.fixture(scope="module")
def model(path):
    import torch
    from transformers import AutoModelForCausalLM

    model, loading = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not any(loading.values()), loading
    assert model.dtype == torch.float32
    return model.eval()


def greedy(model, ids, zeroed_page=None, tokens=TOKENS):
    """The greedy continuation and the logits ``[tokens, vocab]`` of every step, decoded one token at a time.

    With ``zeroed_page`` that page of the prompt's KV cache is zeroed, as if its transfer had been lost.
    """
    import torch

    with torch.no_grad():
        past = model(torch.tensor([ids[:-1]]), use_cache=True).past_key_values
        if zeroed_page is not None:
            lost = slice(zeroed_page * PAGE, (zeroed_page + 1) * PAGE)
            for layer in past.layers:
                layer.keys[:, :, lost] = 0
                layer.values[:, :, lost] = 0
        output, logits, last = [], [], ids[-1]
        for _ in range(tokens):
            step = model(torch.tensor([[last]]), past_key_values=past, use_cache=True)
            past, best = step.past_key_values, step.logits[0, -1]
            last = int(best.argmax())
            output.append(last)
            logits.append(best)
    return output, torch.stack(logits)


def encode(text):
    return list(text.encode())


def test_the_same_seed_gives_the_same_files(path, tmp_path):
    def digests(directory):
        return {name: record.sha256 for name, record in manifest.read(directory).files.items()}

    assert digests(build_tiny(tmp_path / "again")) == digests(path)
    other = digests(build_tiny(tmp_path / "other", seed=1))
    assert other["model.safetensors"] != digests(path)["model.safetensors"]
    assert other["tokenizer.json"] == digests(path)["tokenizer.json"]


def test_the_weights_are_readable_by_whoever_may_read_the_config(path):
    assert (path / "model.safetensors").stat().st_mode == (path / "config.json").stat().st_mode


def test_the_shape_suits_two_ranks(path):
    config = json.loads((path / "config.json").read_text())
    assert config["num_hidden_layers"] == 4
    assert config["num_key_value_heads"] % 2 == config["num_attention_heads"] % 2 == config["vocab_size"] % 64 == 0
    assert config["max_position_embeddings"] >= 8192


def test_every_byte_has_a_character_of_its_own():
    from tokenizers.pre_tokenizers import ByteLevel

    characters = byte_characters()
    assert sorted(characters) == sorted(ByteLevel.alphabet())
    assert len(set(characters)) == 256


@pytest.mark.parametrize("text", ["", " ", "Hello,  world!\r\n\t\0", "Grüße, 東京 🙂", "".join(map(chr, range(0x250)))])
def test_text_is_its_bytes_and_comes_back(tokenizer, text):
    ids = tokenizer(text).input_ids
    assert ids == encode(text)
    assert tokenizer.decode(ids) == text


def test_special_tokens_and_chat_template(tokenizer):
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    bos, eos, role = 256, 257, 258
    said = [bos, role, *b"user\nHi", eos, role, *b"assistant\nHo", eos]
    assert ids == [*said, role, *b"assistant\n"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (bos, eos)


def test_greedy_choices_are_far_apart_compared_with_rounding(model):
    """Rounding: the difference between a whole-sequence pass and decoding token by token."""
    import torch

    margins, noise = [], []
    for prompt in PROMPTS:
        ids = encode(prompt)
        output, logits = greedy(model, ids)
        with torch.no_grad():
            whole = model(torch.tensor([ids + output])).logits[0, len(ids) - 1 : -1]
        best = logits.topk(2).values
        margins.append(best[:, 0] - best[:, 1])
        noise.append((logits - whole).abs().max())
    smallest, typical, rounding = torch.cat(margins).min(), torch.cat(margins).median(), torch.stack(noise).max()
    print(f"margins: smallest {smallest:.2g}, median {typical:.2g}; rounding {rounding:.2g}")
    assert rounding > 0
    assert smallest > 10 * rounding
    assert typical > 1


def test_output_varies_is_printable_and_does_not_end(model):
    outputs = [greedy(model, encode(prompt))[0] for prompt in PROMPTS]
    assert len({tuple(output) for output in outputs}) == len(PROMPTS)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert bytes(output).decode().isprintable()
        # Attention over equal tokens differs by position only, so there less variety is right.
        distinct = TOKENS // 8 if len(set(prompt)) == 1 else TOKENS // 3
        assert len(set(output)) >= distinct, bytes(output)


def test_one_byte_at_the_start_of_a_long_prompt_matters(model):
    assert greedy(model, encode(LONG))[0] != greedy(model, encode("B" + LONG[1:]))[0]


def test_every_lost_page_shows_in_the_output(model):
    ids = encode(LONG)
    tokens = 20
    whole, _ = greedy(model, ids, tokens=tokens)
    pages = (len(ids) - 1) // PAGE
    unnoticed = [page for page in range(pages) if greedy(model, ids, page, tokens)[0] == whole]
    assert pages > 20
    assert not unnoticed
