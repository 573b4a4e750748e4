"""Sequence classifiers with one label: reward models, as a verifier reads them and as a run trains them."""
