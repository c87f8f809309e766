"""Small models of many architectures, with random weights, from transformers' configurations.

Two layers and ragged widths on purpose: sizes that are no whole sticks. Needs transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

VOCABULARY = 130
"""Words of every language model here; ids 0 to 2 are left to special tokens."""
LENGTH = 11
"""Tokens of a prompt."""


@dataclass(frozen=True)
class Family:
    """An architecture. `config`: the class of its configuration in transformers, `auto`: that which
    makes a model of one, `sizes`: the arguments, `kind`: what it takes and gives."""

    name: str
    config: str
    auto: str = "AutoModelForCausalLM"
    kind: str = "text"
    sizes: dict[str, Any] = field(default_factory=dict)

    @property
    def generates(self) -> bool:
        """Whether `generate` applies."""
        return self.kind in ("text", "speech")


_DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 96, "intermediate_size": 150, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
_ENCODER: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 96, "intermediate_size": 150, "num_hidden_layers": 2,
    "num_attention_heads": 6, "max_position_embeddings": 64, "pad_token_id": 0,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_IMAGE: dict[str, Any] = {
    "hidden_size": 96, "intermediate_size": 150, "num_hidden_layers": 2, "num_attention_heads": 6,
    "image_size": 24, "patch_size": 8,
}  # fmt: skip


def _decoder(name: str, config: str, **more: Any) -> Family:
    return Family(name, config, sizes=_DECODER | more)


def _encoder(name: str, config: str, auto: str = "AutoModel", **more: Any) -> Family:
    return Family(name, config, auto, "encoder", _ENCODER | more)


FAMILIES: tuple[Family, ...] = (
    _decoder("Llama", "LlamaConfig"),
    _decoder("SmolLM3", "SmolLM3Config", no_rope_layers=[1, 0]),
    _decoder("Granite", "GraniteConfig", hidden_size=150, num_attention_heads=5,
             num_key_value_heads=1, residual_multiplier=0.22, attention_multiplier=0.1),
    _decoder("Mistral", "MistralConfig", sliding_window=8),
    _decoder("Ministral", "MinistralConfig", sliding_window=8, head_dim=16),
    _decoder("Qwen2", "Qwen2Config"),
    _decoder("Qwen3", "Qwen3Config", head_dim=16),
    _decoder("Phi", "PhiConfig", num_key_value_heads=6),
    _decoder("Phi-3", "Phi3Config"),
    _decoder("Gemma", "GemmaConfig", head_dim=16),
    _decoder("Gemma 2", "Gemma2Config", head_dim=16, sliding_window=8),
    _decoder("Gemma 3", "Gemma3TextConfig", head_dim=16, sliding_window=8),
    _decoder("OLMo", "OlmoConfig"),
    _decoder("OLMo 2", "Olmo2Config"),
    _decoder("StableLM", "StableLmConfig"),
    _decoder("Starcoder 2", "Starcoder2Config"),
    _decoder("Cohere", "CohereConfig"),
    _decoder("GPT-NeoX", "GPTNeoXConfig"),
    Family("GPT-2", "GPT2Config", sizes={
        "n_embd": 96, "n_head": 6, "n_layer": 2, "n_positions": 128, "vocab_size": VOCABULARY,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    Family("OPT", "OPTConfig", sizes={
        "hidden_size": 96, "ffn_dim": 150, "num_attention_heads": 6, "num_hidden_layers": 2,
        "vocab_size": VOCABULARY, "max_position_embeddings": 128, "word_embed_proj_dim": 96,
        "dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}),
    Family("BLOOM", "BloomConfig", sizes={
        "hidden_size": 96, "n_head": 6, "n_layer": 2, "vocab_size": VOCABULARY,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}),
    # Widths of experts: PyTorch's grouped product on the CPU takes rows of whole 16 bytes only.
    _decoder("Mixtral", "MixtralConfig", intermediate_size=152,
             num_local_experts=8, num_experts_per_tok=2),
    _decoder("Qwen3 MoE", "Qwen3MoeConfig", head_dim=16, num_experts=8, num_experts_per_tok=2,
             moe_intermediate_size=72),
    _decoder("Granite MoE", "GraniteMoeConfig", intermediate_size=152,
             num_local_experts=16, num_experts_per_tok=2),
    _decoder("gpt-oss", "GptOssConfig", head_dim=16, intermediate_size=152,
             num_local_experts=8, num_experts_per_tok=2,
             sliding_window=8),
    _decoder("Granite 4 hybrid", "GraniteMoeHybridConfig", intermediate_size=152,
             num_local_experts=4,
             num_experts_per_tok=2, shared_intermediate_size=70, layer_types=["mamba", "attention"],
             mamba_n_heads=6, mamba_d_head=32, mamba_d_state=16, mamba_chunk_size=8,
             mamba_n_groups=1, mamba_expand=2),
    Family("Mamba", "MambaConfig", sizes={
        "hidden_size": 96, "num_hidden_layers": 2, "state_size": 8, "vocab_size": VOCABULARY,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}),
    Family("Mamba 2", "Mamba2Config", sizes={
        "hidden_size": 96, "num_hidden_layers": 2, "state_size": 16, "vocab_size": VOCABULARY,
        "num_heads": 6, "head_dim": 32, "n_groups": 1, "chunk_size": 8, "expand": 2,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}),
    _encoder("BERT", "BertConfig"),
    _encoder("RoBERTa", "RobertaConfig"),
    _encoder("XLM-R", "XLMRobertaConfig"),
    _encoder("MPNet", "MPNetConfig"),
    _encoder("ModernBERT", "ModernBertConfig", global_attn_every_n_layers=2, local_attention=8,
             cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2),
    _encoder("ELECTRA", "ElectraConfig", embedding_size=64),
    Family("DistilBERT", "DistilBertConfig", "AutoModel", "encoder", {
        "dim": 96, "hidden_dim": 150, "n_heads": 6, "n_layers": 2, "vocab_size": VOCABULARY,
        "max_position_embeddings": 64, "dropout": 0.0, "attention_dropout": 0.0}),
    Family("ViT", "ViTConfig", "AutoModel", "image", _IMAGE),
    Family("SigLIP", "SiglipVisionConfig", "SiglipVisionModel", "image", _IMAGE),
    Family("ResNet", "ResNetConfig", "AutoModel", "image", {
        "embedding_size": 24, "hidden_sizes": [24, 40], "depths": [1, 1], "layer_type": "basic"}),
    Family("Whisper", "WhisperConfig", "AutoModelForSpeechSeq2Seq", "speech", {
        "vocab_size": VOCABULARY, "d_model": 96, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 150,
        "decoder_ffn_dim": 150, "num_mel_bins": 20, "max_source_positions": 15,
        "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1, "dropout": 0.0,
        "suppress_tokens": None, "begin_suppress_tokens": None}),
)  # fmt: skip


def family(name: str) -> Family:
    """The family of that name. Raises KeyError with the names there are."""
    for one in FAMILIES:
        if one.name.lower() == name.lower():
            return one
    raise KeyError(f"{name}: one of {', '.join(one.name for one in FAMILIES)}")


def build(one: Family, seed: int = 0) -> torch.nn.Module:
    """The model on the CPU: float32, random weights, `eval`. Weights are wider than transformers'
    own, so that logits tell tokens apart."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, one.config)(**one.sizes)
    if hasattr(config, "initializer_range"):
        config.initializer_range = 0.1
    auto = getattr(transformers, one.auto)
    made = auto.from_config(config) if hasattr(auto, "from_config") else auto(config)
    assert isinstance(made, torch.nn.Module)
    return made.eval()


def inputs(one: Family, batch: int = 2, seed: int = 1) -> dict[str, torch.Tensor]:
    """What `forward` takes, on the CPU: ids and a mask with padding on the left of the last row, or
    pictures, or spectra."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def ids(length: int) -> torch.Tensor:
        return torch.randint(3, VOCABULARY, (batch, length), generator=generator)

    if one.kind == "image":
        size = int(one.sizes.get("image_size", 32))
        return {"pixel_values": torch.randn(batch, 3, size, size, generator=generator)}
    if one.kind == "speech":
        spectra = torch.randn(batch, 20, 30, generator=generator)
        return {"input_features": spectra, "decoder_input_ids": ids(5)}
    tokens = ids(LENGTH)
    mask = torch.ones_like(tokens)
    if batch > 1:
        mask[-1, :3] = 0
        tokens[-1, :3] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def result(output: Any) -> torch.Tensor:
    """The tensor to compare: logits, or the last hidden state."""
    found = getattr(output, "logits", None)
    return found if found is not None else output.last_hidden_state
