"""Timed requests: bytes of HTTP sent by a process that does nothing but stamp what comes back; everything else happens after the run."""
