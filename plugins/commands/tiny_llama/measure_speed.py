"""Measure the time to the first token and the tokens per second."""

import json
import sys
from pathlib import Path
from time import perf_counter

import onnxruntime_genai as og

WARMUP, REPETITIONS = 5, 60

model = og.Model(sys.argv[1])
case = max(json.loads(Path(sys.argv[2]).read_text()), key=lambda case: len(case["prompt"]))
prompt = case["prompt"]
first_ms, per_second = [], []
for _ in range(WARMUP + REPETITIONS):
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(do_sample=False, max_length=case["longest"])
    generator = og.Generator(model, parameters)
    begun = perf_counter()
    generator.append_tokens(prompt)
    generator.generate_next_token()
    first = perf_counter()
    generated = 0
    while not generator.is_done():
        generator.generate_next_token()
        generated += 1
    first_ms.append((first - begun) * 1e3)
    per_second.append(generated / (perf_counter() - first))


def median(samples: list[float], unit: str) -> dict[str, float | str]:
    """Return the median with its 95 % interval, from the order of the samples."""
    ordered = sorted(samples[WARMUP:])
    rank = int((REPETITIONS - 1.96 * REPETITIONS**0.5) / 2)
    middle = (ordered[REPETITIONS // 2 - 1] + ordered[REPETITIONS // 2]) / 2
    return {"value": middle, "low": ordered[rank], "high": ordered[-rank - 1], "unit": unit}


figures = {
    "time to first token": median(first_ms, "ms"),
    "generation": median(per_second, "tokens/s"),
    "prompt": {"value": len(prompt), "unit": "tokens"},
}
Path(sys.argv[3]).write_text(json.dumps(figures))
