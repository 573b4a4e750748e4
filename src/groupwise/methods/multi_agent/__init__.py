"""Several turns or roles, and problems that a program or the policy itself generates.

The methods assign credit to turns and actions, train a main agent and its helper, generate verified problems, or
measure how an answer changes under pressure.
"""
