"""The engines that can be captured: one module each, with one protocol for all, and the readers of their servers' replies."""
