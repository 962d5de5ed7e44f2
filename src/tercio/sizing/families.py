"""Published model names to hold-out families, and families to catalogued shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tercio.errors import UserError
from tercio.sizing.architecture import ModelShape
from tercio.sizing.catalogue import Catalogue


def family(name: str) -> str:
    """The hold-out family of a published model name: lower case, no parentheses, aliases merged."""
    key = re.sub(r"[^a-z0-9.]", "", re.sub(r"\(.*?\)", "", name.lower()))
    for pattern, merged in (
        (r"deepseekv?3.*|deepseekr1.*", "deepseek-v3"),
        (r"gptoss120b.*", "gpt-oss-120b"),
        (r"gptoss20b.*", "gpt-oss-20b"),
        (r"qwen3(moe)?30b.*", "qwen3-30b-a3b"),
        (r"qwen3(moe)?235b.*", "qwen3-235b-a22b"),
        (r"(meta)?llamav?3(\.\d)?8b.*", "llama-3-8b"),
        (r"(meta)?llamav?3(\.\d)?70b.*", "llama-3-70b"),
        (r"(meta)?llamav?3(\.1)?405b.*", "llama-3.1-405b"),
        (r"nemotron(3|3\.5|35)?nano.*|nemotron3nano.*|nemotron330b.*", "nemotron-3-nano"),
        (r"nemotron35lightning.*|nemotron3\.5lightning.*", "nemotron-3.5-lightning"),
        (r"nemotron3super.*|nemotron3120b.*", "nemotron-3-super"),
        (r"nemotron3ultra.*", "nemotron-3-ultra"),
        (r"kimik2(\.5)?.*", "kimi-k2"),
        (r"nemotronh56b.*|nemotronh.*", "nemotron-h-56b"),
        (r"nemotron4?340b.*", "nemotron-4-340b"),
        (r"nemotron4?15b.*", "nemotron-4-15b"),
        (r"nemotron8b.*", "nemotron-3-8b"),
        (r"grok1.*", "grok-1"),
        (r"gpt320b.*", "gpt3-20b"),
        (r"gpt35b.*", "gpt3-5b"),
        (r"gpt3175b.*", "gpt3-175b"),
        (r"llama4maverick.*|llama4400b.*", "llama-4-maverick"),
        (r"llama4scout.*", "llama-4-scout"),
        (r"llama27b.*", "llama-2-7b"),
        (r"llama213b.*", "llama-2-13b"),
        (r"llama270b.*", "llama-2-70b"),
        (r"mixtral8x7b.*", "mixtral-8x7b"),
        (r"mixtral8x22b.*", "mixtral-8x22b"),
        (r"wan2\.114b.*|wan14b.*", "wan-2.1-14b"),
    ):
        if re.fullmatch(pattern, key):
            return merged
    return key


FAMILY_MODELS: Mapping[str, str] = {
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "llama-3-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3-70b": "meta-llama/Meta-Llama-3.1-70B",
    "llama-3.1-405b": "meta-llama/Meta-Llama-3.1-405B",
    "nemotron-3-nano": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nemotron-3.5-lightning": "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4",
    "nemotron-3-super": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
    "nemotron-3-ultra": "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
    "kimi-k2": "moonshotai/Kimi-K2-Instruct",
    "nemotron-h-56b": "nvidia/Nemotron-H-56B-Base-8K",
    "nemotron-4-340b": "nvidia/Nemotron-4-340B",
    "nemotron-4-15b": "nvidia/Nemotron-4-15B",
    "nemotron-3-8b": "nvidia/nemotron-3-8b-base",
    "grok-1": "xai-org/grok-1",
    "gpt3-20b": "nvidia/gpt3-20b",
    "gpt3-5b": "nvidia/gpt3-5b",
    "gpt3-175b": "gpt3-175b",
    "llama-4-maverick": "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    "llama-4-scout": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "llama-2-7b": "meta-llama/Llama-2-7b",
    "llama-2-13b": "meta-llama/Llama-2-13b",
    "llama-2-70b": "meta-llama/Llama-2-70b",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "mixtral-8x22b": "mistralai/Mixtral-8x22B-v0.1",
    "wan-2.1-14b": "Wan-AI/Wan2.1-T2V-14B",
}


def family_shape(catalogue: Catalogue, name: str) -> ModelShape | None:
    """The catalogued shape of a published model name, or None."""
    known = FAMILY_MODELS.get(family(name), name)
    try:
        return catalogue.model(known)
    except UserError:
        return None
