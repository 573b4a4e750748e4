"""Importance ratio and trust region: how far one batch of samples may move the policy.

The methods differ in the unit of the ratio (a token, a segment, a sequence), in its clip, gate or mean, and in the
correction between the engine's and the learner's probabilities. Rewards and advantages stay those of GRPO.
"""
