"""Write a random Llama with two layers, and a tokenizer of single characters."""

import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<unk>", "<s>", "</s>"]
folder = sys.argv[1]
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
    bos_token_id=1, eos_token_id=2, initializer_range=0.3,
)  # fmt: skip
LlamaForCausalLM(config).save_pretrained(folder)
characters = [*SPECIAL, *map(chr, range(32, 127))]
vocabulary = {text: number for number, text in enumerate(characters)}
tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=SPECIAL[0]))
tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
names = dict(zip(("unk_token", "bos_token", "eos_token"), SPECIAL, strict=True))
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
