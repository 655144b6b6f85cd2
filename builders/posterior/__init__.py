"""Posterior methods: draws of weights around trained networks."""
