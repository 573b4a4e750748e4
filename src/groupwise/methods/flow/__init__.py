"""Flow and masked policies: the tokens are denoising steps of a picture or a point, or commits of masked cells.

The methods differ in the noise of the steps, in the ratio and weight of a step, and in whether they train on the steps
of the sampler or on the forward process. `denoise` is set in all of them but `co_grpo`, and they need a flow model.
`co_grpo` sets `unmask` and needs a masked model.
"""
