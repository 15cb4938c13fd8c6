"""Deterministic simulation: whole jobs on the model of Redis, in virtual time. A seed decides what befalls them."""
