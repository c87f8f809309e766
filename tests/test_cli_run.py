"""`openspyre run` and `openspyre bench` with tiny models, each against the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from openspyre.cli import main

pytest.importorskip("transformers")
NATIVE = True  # conftest: eager operations are the card's

SCRIPT = """
import torch

def load():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(70, 33), torch.nn.ReLU(), torch.nn.Linear(33, 5))

def example():
    return torch.ones(3, 70)
"""
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "green", "house", "river"]


def called(*arguments: str) -> Result:
    torch._dynamo.reset()
    return CliRunner().invoke(main, list(arguments))


def answer(*arguments: str) -> dict[str, Any]:
    found = called(*arguments, "--json")
    assert found.exit_code == 0, found.output
    value: dict[str, Any] = json.loads(found.stdout)
    return value


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "small.py"
    path.write_text(SCRIPT)
    return str(path)


def tokenizer(folder: Path) -> Any:
    from transformers import BertTokenizer

    words = folder / "vocab.txt"
    words.write_text("\n".join(WORDS))
    return BertTokenizer(str(words))


@pytest.fixture
def encoder(tmp_path: Path) -> tuple[str, Any, Any]:
    """A directory as save_pretrained writes it, with its model and tokenizer."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=96, num_attention_heads=6, intermediate_size=150, num_hidden_layers=1,
        vocab_size=len(WORDS), initializer_range=0.2,
    )  # fmt: skip
    model, words = BertModel(config).eval(), tokenizer(tmp_path)
    folder = tmp_path / "encoder"
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder), model, words


@pytest.fixture
def decoder(tmp_path: Path) -> tuple[str, Any, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=96, num_attention_heads=6, num_key_value_heads=2, intermediate_size=150,
        num_hidden_layers=1, vocab_size=len(WORDS), initializer_range=0.4, eos_token_id=None,
    )  # fmt: skip
    model, words = LlamaForCausalLM(config).eval(), tokenizer(tmp_path)
    folder = tmp_path / "decoder"
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder), model, words


@pytest.mark.parametrize("how", [(), ("--compile",)], ids=["eager", "compiled"])
def test_a_python_file_brings_its_model_and_its_inputs(script: str, how: tuple[str, ...]) -> None:
    found = answer("run", script, *how, "--dtype", "float32")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(70, 33), torch.nn.ReLU(), torch.nn.Linear(33, 5))
    wanted = model(torch.ones(3, 70))
    (row,) = found["results"]
    assert row["shape"] == [3, 5] and found["fallbacks"] == {}
    assert row["mean"] == pytest.approx(float(wanted.mean()), rel=1e-4)
    assert row["largest"] == pytest.approx(float(wanted.abs().max()), rel=1e-4)


@pytest.mark.parametrize("how", [(), ("--compile",)], ids=["eager", "compiled"])
def test_an_encoder_gives_vectors(encoder: tuple[str, Any, Any], how: tuple[str, ...]) -> None:
    folder, model, words = encoder
    texts = ["a red house", "river"]
    found = answer("run", folder, *texts, *how)
    given = words(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**given).last_hidden_state
    mask = given["attention_mask"][..., None]
    wanted = (hidden * mask).sum(1) / mask.sum(1)
    cosines = torch.cosine_similarity(torch.tensor(found["vectors"]), wanted)
    assert float(cosines.min()) >= 0.999


@pytest.mark.parametrize("how", [(), ("--compile",)], ids=["eager", "compiled"])
def test_a_language_model_continues_a_text(
    decoder: tuple[str, Any, Any], how: tuple[str, ...]
) -> None:
    folder, model, words = decoder
    found = answer("run", folder, "a red", "--max-new-tokens", "6", "--dtype", "float32", *how)
    ids = words("a red", return_tensors="pt")["input_ids"]
    made = model.generate(ids, do_sample=False, max_new_tokens=6)[0, ids.shape[1] :]
    assert found["text"] == words.decode(made, skip_special_tokens=True).strip()
    assert found["tokens"] == 6 and found["tokens_per_second_modelled"] > 0


@pytest.mark.slow
def test_bench_tells_ratios_and_modelled_speeds(decoder: tuple[str, Any, Any]) -> None:
    found = answer("bench", decoder[0], "--prompt", "5", "--tokens", "3", "--repeats", "1")
    assert set(found["runs"]) == {"cpu", "spyre eager", "spyre compiled"}
    base = found["runs"]["cpu"]
    assert base["decode"]["per_second_modelled"] is None
    for row in found["runs"].values():
        for phase in ("prefill", "decode"):
            ratio = base[phase]["seconds"] / row[phase]["seconds"]
            assert row["ratios"][phase] == pytest.approx(ratio)
    assert found["runs"]["spyre compiled"]["decode"]["per_second_modelled"] > 0


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, script: str) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    for arguments, text in (
        (("run", "no-such-model"), "Nothing is fetched from a hub"),
        (("run", str(tmp_path)), "config.json"),
        (("run", str(empty)), "no function load()"),
        (("run", script, "text"), "takes no TEXT"),
        (("run", script, "--report", str(tmp_path / "none" / "page.html")), "no directory"),
        (("bench", "no-such-model"), "smollm2-135m"),
    ):
        found = called(*arguments)
        assert found.exit_code == 2 and text in found.output, (arguments, found.output)
        assert "Traceback" not in found.output
