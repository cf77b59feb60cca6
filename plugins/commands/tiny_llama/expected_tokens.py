"""Write the greedy tokens of transformers for some prompts, without the end token."""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

PROMPTS = ([1, 40, 70, 80], [1, *range(20, 52)], [1, 90], [1, *range(120, 4, -3)])
NEW_TOKENS = 48

model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
cases = []
for prompt in PROMPTS:
    with torch.no_grad():
        tokens = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0
        )
    new = [
        token for token in tokens[0, len(prompt) :].tolist() if token != model.config.eos_token_id
    ]
    cases.append({"prompt": prompt, "tokens": new, "longest": len(prompt) + NEW_TOKENS})
Path(sys.argv[2]).write_text(json.dumps(cases))
