"""The engines that can be captured: one module each behind one protocol, and what their servers say."""
