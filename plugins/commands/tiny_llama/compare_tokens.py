"""Count the tokens that onnxruntime-genai generates unlike transformers."""

import json
import sys
from itertools import zip_longest
from pathlib import Path

import onnxruntime_genai as og

model = og.Model(sys.argv[1])
compared = different = 0
for case in json.loads(Path(sys.argv[2]).read_text()):
    prompt, expected = case["prompt"], case["tokens"]
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(do_sample=False, max_length=case["longest"])
    generator = og.Generator(model, parameters)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    tokens = generator.get_sequence(0).tolist()[len(prompt) :]
    print(prompt, "->", tokens)
    compared += len(expected)
    different += sum(a != b for a, b in zip_longest(tokens, expected))
figures = {"compared tokens": {"value": compared}, "different tokens": {"value": different}}
Path(sys.argv[3]).write_text(json.dumps(figures))
