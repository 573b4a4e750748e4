"""Policy gradients with their baselines, PPO with a critic, and GRPO with the first corrections of its biases.

In GRPO a group of answers to one prompt is its own baseline. The methods differ in the baseline, in the place of the KL
penalty, and in the divisors of the loss. Most methods of the other families change one of these.
"""
