"""Boots: one server after the other, each asked what the plan says, everything written as soon as it is there."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING

from pytest_specdec.capture import lease, observe
from pytest_specdec.capture.answering import Answering
from pytest_specdec.capture.arm import Arm, Recipe
from pytest_specdec.capture.engines.arguments import merged
from pytest_specdec.capture.engines.protocol import Setup
from pytest_specdec.capture.launch import port
from pytest_specdec.capture.scoring import PromptLogprobs, Scoring
from pytest_specdec.capture.secrets import Secrets
from pytest_specdec.capture.survey import Survey
from pytest_specdec.config.config import Limits
from pytest_specdec.config.expand import expand
from pytest_specdec.errors import EngineError
from pytest_specdec.files import records, scores, transcripts
from pytest_specdec.model.pair import BASELINE, CONTROL
from pytest_specdec.model.plan import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.capture.engines.protocol import Engine
    from pytest_specdec.capture.ledger import Ledger
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.config.config import Config, Overlay, VariantSettings
    from pytest_specdec.files.directory import RunDirectory
    from pytest_specdec.model.plan import Boot, Plan
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.workload import JSON, Workload

__all__ = ["Boots"]

_UNSAID_S = Limits().request_s
"""The default of a workload's deadline and of the config's."""


@dataclass(slots=True, kw_only=True)
class Boots:
    """Runs the boots of one plan in turn."""

    config: Config
    plan: Plan
    directory: RunDirectory
    engine: Engine
    reporter: Reporter
    ledger: Ledger
    _versions: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Run all boots; one that fails does not stop the others, unless it is the baseline, without which nothing is judged."""
        for boot in self.plan.boots:
            try:
                self.reporter.check()
                self._boot(boot)
            except EngineError as error:
                self.ledger.failed(boot, str(error))
                if boot.role in {Role.BASELINE, Role.CONTROL}:
                    raise

    def check(self) -> None:
        """Raise ConfigError when a variable that some boot needs is not set, before the first one starts."""
        for boot in self.plan.boots:
            self._setup(boot)

    def _boot(self, boot: Boot) -> None:
        self.reporter.step(boot, "booting", boot.arm)
        arm = Arm(self._recipe(boot), tick=self._tick)
        with ExitStack() as stack:
            with self._loud():
                stack.enter_context(arm)
            self.ledger.boots += 1
            stack.callback(self._count_restarts, arm)
            self._observe(arm.version)
            self._work(boot, arm)
            self.reporter.step(boot, "stopping", boot.arm)

    def _count_restarts(self, arm: Arm) -> None:
        self.ledger.restarts += arm.restarts

    def _work(self, boot: Boot, arm: Arm) -> None:
        """Survey the baseline first and a variant last: a question that kills a variant then costs no answers."""
        if boot.role is not Role.VARIANT:
            self._survey(boot, arm)
        for name in (BASELINE, CONTROL) if boot.also_baseline else (boot.arm,):
            for workload in map(self.plan.workload, boot.answers):
                self._answer(boot, arm, name, workload)
        self._score(boot, arm)
        if boot.role is Role.VARIANT:
            self._survey(boot, arm)

    def _survey(self, boot: Boot, arm: Arm) -> None:
        if boot.survey and arm.running:
            name = BASELINE if boot.also_baseline else boot.arm
            self.reporter.step(boot, "survey", name)
            with self._loud():
                vocabulary = self.engine.vocabulary(self.config)
                records.write_capabilities(self.directory, name, Survey(arm, vocabulary).run())

    def _answer(self, boot: Boot, arm: Arm, name: str, workload: Workload) -> None:
        self.reporter.check()
        self.reporter.step(boot, "answering", name, workload.name, of=len(workload.requests) * workload.passes)
        answering = Answering(
            arm,
            workload,
            name=name,
            boot=boot.index,
            deadline_s=self._request_s(workload),
            reporter=self.reporter,
        )
        with lease.quiet(self._lease_s, self._tick) if workload.timed else self._loud():
            answered = answering.run()
        transcript = answered.transcript
        if answered.missing:
            # Kept beside the whole ones under another name, so that nobody judges part of a workload for the whole of it.
            transcript = replace(transcript, workload=f"{workload.name}.partial")
        if not answered.missing or transcript.tokens:
            transcripts.write(self.directory, transcript)
        self.ledger.answered(name, workload.name, answered.missing)

    def _score(self, boot: Boot, arm: Arm) -> None:
        under = boot.arm if boot.role is Role.DRAFT else BASELINE
        for name, pairs in groupby(boot.scores, key=lambda pair: pair[1]):
            workload = self.plan.workload(name)
            scorer = PromptLogprobs(arm, self._request_s(workload))
            scoring = Scoring(arm=arm, under=under, scorer=scorer, reporter=self.reporter)
            for of_arm, _ in pairs:
                self.reporter.check()
                transcript = transcripts.read(self.directory, of_arm, name)
                if transcript is not None:
                    self._score_one(boot, scoring, transcript, workload.atoms)

    def _score_one(self, boot: Boot, scoring: Scoring, transcript: Transcript, atoms: int) -> None:
        arm, name = transcript.arm, transcript.workload
        self.reporter.step(boot, "scoring", arm, name, of=len(transcript.answers))
        with self._loud():
            scored = scoring.score(transcript, atoms)
        scores.write(self.directory, scoring.under, arm, name, scored.scores)
        self.ledger.scored(boot, arm, name, scored.missing)

    def _observe(self, version: str) -> None:
        if version not in self._versions:
            self._versions.add(version)
            records.write_environment(self.directory, observe.environment(self.config, version))

    def _recipe(self, boot: Boot) -> Recipe:
        config, setup = self.config, self._setup(boot)
        pinned = setup.args.get("port")
        setup = replace(setup, port=port.pinned(pinned) if isinstance(pinned, int) else port.free())
        return Recipe(
            engine=self.engine,
            setup=setup,
            command=self.engine.command(config, setup),
            draft_tokens=self.plan.pair(boot.arm).variant.draft.tokens if boot.role is Role.VARIANT else 0,
            log=self.directory.server_log(boot.index, boot.arm),
            boot_s=config.limits.boot_s,
            stop_s=config.limits.stop_s,
        )

    def _setup(self, boot: Boot) -> Setup:
        """Return what ``boot`` serves, its port still open."""
        engine, overlay = self.config.engine, self._overlay(boot)
        env = {name: str(_expanded(value, "env", name)) for name, value in {**engine.env, **overlay.env}.items()}
        api_key = str(_expanded(engine.api_key, "engine", "api_key")) if engine.api_key else None
        return Setup(
            model=boot.arm if boot.role is Role.DRAFT else engine.model,
            port=0,
            args={name: _expanded(value, "args", name) for name, value in merged(engine.args, overlay.args).items()},
            env=env,
            api_key=api_key,
            speculative=boot.role is Role.VARIANT,
            secrets=Secrets.of(os.environ, env, also=(api_key,)),
        )

    def _overlay(self, boot: Boot) -> Overlay | VariantSettings:
        if boot.role is Role.VARIANT:
            return self.config.variant(boot.arm)
        return self.config.draft if boot.role is Role.DRAFT else self.config.baseline

    def _request_s(self, workload: Workload) -> float:
        """Return the workload's own deadline, or, where it says nothing, the config's."""
        return self.config.limits.request_s if workload.deadline_s == _UNSAID_S else workload.deadline_s

    @contextmanager
    def _loud(self) -> Iterator[None]:
        with lease.loud(self._lease_s, self._tick):
            yield

    @property
    def _lease_s(self) -> float:
        return min(self.reporter.left_s, lease.LONGEST_S)

    def _tick(self) -> None:
        self.reporter.check()
        self.reporter.update(0, 0)


def _expanded(value: JSON, *path: str) -> JSON:
    return expand(value, os.environ, path)
