"""The recipe that tests of whole training runs share."""

TINY = """
[model.overrides]
num_attention_heads = 2
attention_head_dim = 16
ffn_dim = 64
num_layers = 1

[plan]
token_budget = 96
packs_per_step = 2

[log]
every = 1
tensorboard = false
"""
"""A model of one small layer, two packs a step, a line a step; tests put `steps` before it and `[data]` after it."""
