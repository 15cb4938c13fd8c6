"""A model of Redis inside the process, on which the production scripts run: its clock and its ends are arguments.

It knows the commands that the store and its scripts send, and refuses all others loudly. Tests hold its replies and its
keyspace equal to those of the real server.
"""
