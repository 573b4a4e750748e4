"""Methods that change what is sampled: the prompts of an iteration, the samples of each, or their context.

The methods give hints where all answers fail, refine drafts, sample trees of continuations, distribute a budget over
prompts, stop early, or reuse samples of earlier iterations. Most of them keep the loss of GRPO.
"""
