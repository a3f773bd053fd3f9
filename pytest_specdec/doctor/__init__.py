"""The doctor: says in seconds, before an hour of GPU time, whether a run would get off the ground. It boots nothing."""
