"""The contract of an engine's adapter: what its engine and dialect claim, held against live servers.

A pass means: the server does as the adapter says. A skip is a claim that is not made, or one that could not be checked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .answers import Answers
from .counts import BaselineCounts, Counts, Traffic
from .lifecycle import Lifecycle, Program
from .scores import Scores, Vocabulary

if TYPE_CHECKING:
    from .visit import Visit


class TestBaseline(Traffic, BaselineCounts, Vocabulary, Scores, Answers, Program, Lifecycle):
    """The server that scores; tests of the last base come first."""

    @pytest.fixture
    def visit(self, baseline_visit: Visit) -> Visit:
        """Return the visit of the baseline's server."""
        return baseline_visit


class TestVariant(Traffic, Counts, Vocabulary, Answers, Lifecycle):
    """The server that speculates, of each variant."""

    @pytest.fixture
    def visit(self, variant_visit: Visit) -> Visit:
        """Return the visit of the variant's server."""
        return variant_visit
