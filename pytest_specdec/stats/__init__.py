"""The arithmetic of the judges: arrays in, arrays out, nothing read, nothing drawn."""
