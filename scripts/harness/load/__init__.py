"""The load client: a closed loop of streamed requests whose every arrival is timed by the kernel.

    spec = LoadSpec(base_url="http://127.0.0.1:8000", body={"model": "m", "prompt": PROMPT, "stream": True, …}, …)
    result = run(spec, out_dir, on_progress=…, before_load=…, after_load=…)

The load itself runs in worker processes; the caller's process only waits, so it is free to scrape and to draw.
"""

from scripts.harness.load.driver import run, salvage
from scripts.harness.load.prompts import draw_prompt, draw_prompts, draw_text, mix_seed
from scripts.harness.load.spec import PROMPT, FidelityLimits, LoadResult, LoadSpec, Progress, Timeouts

__all__ = [
    "PROMPT",
    "FidelityLimits",
    "LoadResult",
    "LoadSpec",
    "Progress",
    "Timeouts",
    "draw_prompt",
    "draw_prompts",
    "draw_text",
    "mix_seed",
    "run",
    "salvage",
]
