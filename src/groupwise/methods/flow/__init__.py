"""Flow policies: the tokens are denoising steps of a picture or a point, and the actions are Gaussian.

The methods differ in the noise of the steps, in the ratio and weight of a step, and in whether they train on the steps
of the sampler or on the forward process. `denoise` is set in all of them; they need a flow model.
"""
