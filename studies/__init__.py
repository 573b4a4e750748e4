"""Studies of effects that papers claim, at a size that two cores repeat: `make studies`."""
