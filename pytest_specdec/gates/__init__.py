"""Gates: thresholds in baseline files, floors computed from a machine's own runs, and rulings on what was measured."""
