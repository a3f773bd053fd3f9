"""Capture boots servers, sends workloads and writes what came back; it judges nothing."""
