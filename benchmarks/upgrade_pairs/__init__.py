"""Size and power of the comparison of two baselines."""
