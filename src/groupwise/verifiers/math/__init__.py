"""The verifier `Math`, and the published graders of math-verify, DAPO and Dr. GRPO."""
