"""Server families by the name they have in a round's file."""

from typing import TYPE_CHECKING

from scripts.harness.errors import SweepError

if TYPE_CHECKING:
    from scripts.harness.engines.base import Engine


def get(name: str) -> "Engine":
    """Return an engine. Raises SweepError for a name that is none."""
    if name == "llama_cpp":
        from scripts.harness.engines.llama_cpp import LlamaCppEngine

        return LlamaCppEngine()
    if name == "vllm":
        from scripts.harness.engines.vllm import VllmEngine

        return VllmEngine()
    if name == "openai":
        from scripts.harness.engines.openai import OpenaiEngine

        return OpenaiEngine()
    raise SweepError(f"unknown engine {name!r}; expected llama_cpp, vllm or openai")
