"""The state of some keys of a running job, computed anew from history and swapped for what there is."""
