"""What a loaded model does: generates text, encodes sentences, computes; timed token by token.

The same code serves any torch device, so that a benchmark compares like with like. Needs torch and,
for compiled text, transformers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

import openspyre.device as spyre

if TYPE_CHECKING:
    from openspyre.models.registry import Loaded

STICK = 64
"""Static caches are whole sticks of float16 long."""


@dataclass
class Text:
    """Tokens that were generated, and when: `seconds[0]` is the prompt's pass, each further entry a
    token's. `modelled_ns`: the same on the card's virtual clock (modelled; 0 on other devices)."""

    prompt_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    modelled_ns: list[int] = field(default_factory=list)


class Clock:
    """Wall and modelled time of a device since the last look; looking waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.card = device.type == "spyre"
        self.index = device.index or 0
        self.wall, self.modelled = self._now()

    def _now(self) -> tuple[float, int]:
        at = 0
        if self.card:
            spyre.synchronize(self.index)
            at = spyre.synthetic.device_time_ns(self.index)
        return time.perf_counter(), at

    def look(self) -> tuple[float, int]:
        """(seconds, modelled nanoseconds) since the look before."""
        wall, modelled = self._now()
        gone = wall - self.wall, modelled - self.modelled
        self.wall, self.modelled = wall, modelled
        return gone


def prompt_ids(loaded: Loaded, prompt: str) -> torch.Tensor:
    """Tokens [1, length] of a prompt, on the CPU; as a chat's question if the tokenizer knows
    chats."""
    tokenizer = loaded.tokenizer
    if getattr(tokenizer, "chat_template", None):
        found = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
    else:
        found = tokenizer(prompt, return_tensors="pt")
    ids: torch.Tensor = found["input_ids"]
    return ids


def ends(model: Any) -> set[int]:
    """The tokens that end a text."""
    end = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return set(end if isinstance(end, list) else [] if end is None else [end])


class Generator:
    """Greedy generation with a static cache, eager or by a forward pass that torch.compile made.

    One of them may be used again and again: what it compiled stays. `longest`: places of the cache;
    a prompt and its answer must fit.
    """

    def __init__(self, model: Any, *, compiled: bool, longest: int) -> None:
        self.model = model
        self.device: torch.device = next(model.parameters()).device
        self.longest = -(-longest // STICK) * STICK
        self.forward = torch.compile(model.forward, dynamic=False) if compiled else model.forward

    def __call__(
        self,
        ids: torch.Tensor,
        count: int,
        *,
        stop: set[int] | None = None,
        each: Callable[[int], None] | None = None,
    ) -> Text:
        """At most `count` tokens behind `ids` [1, length]; `each` is called with every one.

        Raises ValueError if they do not fit the cache.
        """
        from transformers import StaticCache

        length = ids.shape[1]
        if length + count > self.longest:
            raise ValueError(f"{length} and {count} tokens do not fit {self.longest} places")
        cache = StaticCache(config=self.model.config, max_cache_len=self.longest)
        step = ids.to(self.device)
        position = torch.arange(length, device=self.device)[None]
        text = Text(length)
        with torch.inference_mode():
            clock = Clock(self.device)
            while len(text.tokens) < count and not (stop or set()) & set(text.tokens[-1:]):
                logits = self.forward(
                    input_ids=step,
                    position_ids=position,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                ).logits
                step = logits[:, -1].argmax(-1, keepdim=True)
                text.tokens.append(int(step))
                seconds, modelled = clock.look()
                text.seconds.append(seconds)
                text.modelled_ns.append(modelled)
                position = torch.tensor([[length + len(text.tokens) - 1]], device=self.device)
                if each is not None:
                    each(text.tokens[-1])
        return text


def vectors(loaded: Loaded, forward: Callable[..., Any], texts: list[str]) -> torch.Tensor:
    """Unit vectors [texts, width] on the CPU: the mean of the last hidden states, pads left out."""
    device = next(loaded.model.parameters()).device
    given = loaded.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    given = {name: tensor.to(device) for name, tensor in given.items()}
    with torch.inference_mode():
        hidden = forward(**given).last_hidden_state
        mask = given["attention_mask"][..., None].to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        found: torch.Tensor = torch.nn.functional.normalize(mean, dim=-1).cpu().float()
    return found
