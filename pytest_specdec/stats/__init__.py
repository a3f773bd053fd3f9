"""The arithmetic behind the judges: arrays in, arrays out, nothing read, nothing drawn."""
