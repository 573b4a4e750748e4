"""Objectives that compare answers with each other or with another model, in place of a policy gradient.

The methods classify, rank or regress the answers of a group, or imitate a teacher's distribution. Some of them
alternate such a phase with reinforcement learning.
"""
