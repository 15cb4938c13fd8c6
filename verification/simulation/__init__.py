"""Deterministic simulation: whole jobs on the model of Redis, in virtual time. One seed decides all that befalls them."""
