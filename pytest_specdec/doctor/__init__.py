"""The doctor: says in seconds, before an hour of accelerator time, what would keep a run from starting. It boots nothing."""
