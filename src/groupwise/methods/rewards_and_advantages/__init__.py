"""Rewards and advantages: from a verdict to one number per sample or per token.

The methods combine several rewards, pay for brevity or for rare answers, correct a noisy verifier, replace the group's
z-score, or divide the credit of an answer among its tokens.
"""
