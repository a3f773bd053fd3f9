"""The closed table of an upgrade's headlines, cell by cell."""

from __future__ import annotations

from itertools import product

from pytest_specdec.report.upgrade import Answers, Pace, Speculation, UpgradeHeadline, UpgradeWord, choose_headline

CELLS = [
    # answers, speculation: headline and word without a loss, and whether one leads: offers less, slower or noisier
    (Answers.SAME, Speculation.FOLLOWS, UpgradeHeadline.SAFE, UpgradeWord.FINE, True),
    (Answers.SAME, Speculation.BROKE, UpgradeHeadline.BROKE, UpgradeWord.WORSE, False),
    (Answers.SAME, Speculation.UNLOOKED, UpgradeHeadline.WRONG, UpgradeWord.WORSE, False),
    (Answers.SAME, Speculation.OPEN, UpgradeHeadline.CANNOT_SAY, UpgradeWord.UNKNOWN, True),
    (Answers.TOLERATED, Speculation.FOLLOWS, UpgradeHeadline.CHANGED, UpgradeWord.FINE, True),
    (Answers.TOLERATED, Speculation.BROKE, UpgradeHeadline.BOTH, UpgradeWord.WORSE, False),
    (Answers.TOLERATED, Speculation.UNLOOKED, UpgradeHeadline.CHANGED_WRONG, UpgradeWord.WORSE, False),
    (Answers.TOLERATED, Speculation.OPEN, UpgradeHeadline.CHANGED_OPEN, UpgradeWord.UNKNOWN, True),
    (Answers.CHANGED, Speculation.FOLLOWS, UpgradeHeadline.CHANGED, UpgradeWord.WORSE, False),
    (Answers.CHANGED, Speculation.BROKE, UpgradeHeadline.BOTH, UpgradeWord.WORSE, False),
    (Answers.CHANGED, Speculation.UNLOOKED, UpgradeHeadline.CHANGED_WRONG, UpgradeWord.WORSE, False),
    (Answers.CHANGED, Speculation.OPEN, UpgradeHeadline.CHANGED_OPEN, UpgradeWord.WORSE, False),
    (Answers.UNKNOWN, Speculation.FOLLOWS, UpgradeHeadline.NO_NEW_FINDING, UpgradeWord.UNKNOWN, True),
    (Answers.UNKNOWN, Speculation.BROKE, UpgradeHeadline.WORSE, UpgradeWord.WORSE, False),
    (Answers.UNKNOWN, Speculation.UNLOOKED, UpgradeHeadline.WRONG, UpgradeWord.WORSE, False),
    (Answers.UNKNOWN, Speculation.OPEN, UpgradeHeadline.NO_NEW_FINDING, UpgradeWord.UNKNOWN, True),
]
"""The last column: whether a loss, a slowdown or more noise takes the headline."""


def test_every_combination_of_facts_has_its_headline_and_word():
    assert {(answers, speculation) for answers, speculation, *_ in CELLS} == set(product(Answers, Speculation))
    for answers, speculation, headline, word, yields in CELLS:
        for offers_less, pace, is_noisier in product((False, True), Pace, (False, True)):
            case = choose_headline(answers, speculation, offers_less=offers_less, pace=pace, is_noisier=is_noisier)
            worse = {
                UpgradeHeadline.OFFERS_LESS: offers_less,
                UpgradeHeadline.SLOWER: pace is Pace.SLOWER,
                UpgradeHeadline.NOISIER: is_noisier,
            }
            leads = yields and any(worse.values())
            expected = next(one for one, holds in worse.items() if holds) if leads else headline
            where = (answers, speculation, offers_less, pace, is_noisier)
            if word is UpgradeWord.FINE and pace is Pace.DOUBTFUL and not leads:
                expected, word_of = UpgradeHeadline.CANNOT_SAY, UpgradeWord.UNKNOWN
            else:
                word_of = UpgradeWord.WORSE if leads else word
            assert (case, where) == (expected, where)
            assert (case.word(answers), where) == (word_of, where)


def test_every_headline_has_a_cell():
    sides = product(Answers, Speculation, (False, True), Pace, (False, True))
    reached = {
        choose_headline(answers, speculation, offers_less=less, pace=pace, is_noisier=noisier)
        for answers, speculation, less, pace, noisier in sides
    }
    assert reached == set(UpgradeHeadline)
