"""A random job under random faults ("blows"): killed workers and coordinators, a store that fails
or stops to answer, lost scratch. One seed decides all of them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.coordinators import Coordinators, Ended
from tests.support.datasets import Member, Shard, small_dataset, write_shards
from tests.support.fault_points import IN_WORKERS, PointFault, arm, struck
from tests.support.faulty_bucket import TRANSIENT
from tests.support.faulty_store import DOWN, StoreFaults, arm_store
from tests.support.inline_runtime import run_inline
from tests.support.surviving import BY_CLASS, KEY_MAP, Case, Facts, facts_of, start_arguments

BLOWS_MAX = 4
"""Faults end at most so many attempts; the next attempt runs to its end."""
ENDS_BY_BLOWS = {-9: "killed", 143: "terminated"}
STORAGE_ERROR = 4
CONFLICT = 2
IN_COORDINATORS = [
    "lease:take",
    "journal:append",
    "journal:flush",
    "file:sync",
    "plan:start",
    "commit:start",
    "publish:start",
    "publish:end",
    "make_durable",
    "discard",
]
NEVER = 1e9


@dataclass
class Chaos:
    """One run. ``armed``, ``struck``: the numbers of faults that were armed, and that struck.
    ``log``: all actions and ends, for a reader who looks for the cause of a failure."""

    seed: int
    root: Path
    begun: Coordinators
    armed: int = 0
    struck: int = 0
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(f"chaos {self.seed}")
        self._case = _case(self._rng)
        self._like_store = self._case.move == "spill" and self._rng.random() < 0.5
        self._attempts = 0
        self._note(f"job: {self._case.move}, store {self._like_store}, {dict(self._case.fields)}")

    def expected(self) -> Facts:
        """The result of the job without faults, made in this process."""
        calm = self.root / "calm"
        self._prepare(calm)
        run_inline(self._case.spec, calm)
        return facts_of(calm / "out")

    def run(self) -> None:
        """Begin the job, and resume it until it is done."""
        self._prepare(self.root)
        verb = start_arguments(self._case)
        while True:
            ended, points = self._attempt(verb)
            if ended.code == 0:
                break
            self._look_into(ended, points)
            if self._is_begun():
                self._strike_between()
                verb = ["resume", "out", "--workers", str(self._rng.randint(1, 3))]
            else:
                verb = start_arguments(self._case)
        if "has finished already" in ended.err:
            self._tidy_up()

    def _attempt(self, verb: list[str]) -> tuple[Ended, Path]:
        self._attempts += 1
        points = self.root / f"points-{self._attempts}"
        faults = [] if self._attempts > BLOWS_MAX else self._draw_faults()
        arm(points, *faults, may_miss=True)
        rate = self._rng.choice([0.0, 0.05, 0.2])
        kinds = [*TRANSIENT, "cut", "reply lost"]
        seed = f"{self.seed}/{self._attempts}"
        store = StoreFaults((), seed, rate, kinds, like_store=self._like_store)
        arm_store(points, store, may_miss=True)
        flush_s = self._rng.choice([0.0, 0.05, NEVER])
        arguments = [*verb, "--scratch", str(self.root / "scratch")]
        ended = self.begun.run(self.root, *arguments, points=points, flush_s=flush_s)
        self._note(f"{verb[0]}, flush {flush_s}, rate {rate}, {faults}")
        self.armed += len(faults)
        self.struck += len(struck(points))
        self._note(f"  struck {struck(points)}, ended with {ended.code}: {ended.err[-400:]}")
        return ended, points

    def _draw_faults(self) -> list[PointFault]:
        draw = self._rng
        faults = [
            PointFault(draw.choice([*IN_WORKERS]), draw.randint(1, 6))
            for _ in range(draw.choice([0, 1, 2]))
        ]
        end = draw.choice(["kill", "kill", "kill", "terminate", "store down", "none"])
        if end != "none":
            in_worker = draw.random() < 0.5
            action = f"{end} parent" if in_worker and end != "store down" else end
            point = draw.choice([*IN_WORKERS] if in_worker else IN_COORDINATORS)
            faults.append(PointFault(point, draw.randint(1, 8), action))
        return faults

    def _look_into(self, ended: Ended, points: Path) -> None:
        """Check the end of an attempt: by a fault, by a store that is down, or because the job left
        too little to be resumed."""
        assert "Traceback" not in ended.err
        if ended.code in ENDS_BY_BLOWS:
            return
        if ended.code == CONFLICT:
            assert "start the job again" in ended.err
            self._tidy_up()
            assert not self._is_begun()
            return
        assert ended.code == STORAGE_ERROR
        assert (points / DOWN).exists()

    def _strike_between(self) -> None:
        what = self._rng.choice(["nothing", "nothing", "scratch", "staged"])
        if what == "scratch":
            shutil.rmtree(self.root / "scratch", ignore_errors=True)
        if what == "staged":
            for path in sorted(self.root.glob("out/.dsort/*/staged/*"))[:1]:
                path.unlink()
        self._note(f"lost between: {what}")

    def _tidy_up(self) -> None:
        scratch = str(self.root / "scratch")
        arguments = ["gc", "out", "--remove", "--older-than", "0s", "--scratch", scratch]
        ended = self.begun.run(self.root, *arguments)
        assert ended.code == 0, ended.err

    def _is_begun(self) -> bool:
        return any(self.root.glob("out/.dsort/*"))

    def _prepare(self, root: Path) -> None:
        write_shards(root / "in", _inputs(self.seed % 5))
        (root / "out").mkdir()
        write_shards(root / "out", self._case.old)

    def _note(self, text: str) -> None:
        self.log.append(text)


def _case(draw: random.Random) -> Case:
    algorithms: list[Mapping[str, Any]] = [
        {"algorithm": {"kind": "none"}},
        {"algorithm": {"kind": "shuffle", "seed": draw.randrange(100)}},
        {"algorithm": {"kind": "md5"}},
        {"algorithm": {"kind": "alphanumeric", "decreasing": True}},
        BY_CLASS,
        KEY_MAP,
    ]
    fields: dict[str, Any] = dict(draw.choice(algorithms))
    cuts = [{"output_shard_records": draw.randint(3, 9)}, {"output_shard_size": 20_000}]
    if "ekm" not in fields:
        cuts.append({"output_shard_count": draw.randint(1, 6)})
    fields |= {"output_shard_records": None, **draw.choice(cuts)}
    fields["Config"] = {"duplicate_keys": draw.choice(["ignore", "warn", "drop", "rename"])}
    if "ekm" in fields:
        fields["Config"]["ekm_missing_key"] = draw.choice(["ignore", "warn"])
    if draw.random() < 0.3:
        fields["verify"] = "content"
    if draw.random() < 0.3:
        fields["index"] = "wids"
        if fields["Config"]["duplicate_keys"] in ("ignore", "warn"):  # refused together
            fields["Config"]["duplicate_keys"] = "rename"
    old = {}
    if draw.random() < 0.3:
        fields["overwrite"] = True
        old = {"out-0.tar": b"an old shard"} if "ekm" not in fields else {}
    return Case(draw.choice(["map", "spill", "spill"]), fields, old)


def _inputs(seed: int) -> dict[str, Shard]:
    """Four or five shards, with some keys twice."""
    shards = small_dataset(f"chaos {seed}", shards=3 + seed % 2, records=9, payload_bytes_max=5000)
    again = [replace(each, payload=b"8" + each.payload) for each in shards["in-0.tar"].members[:6]]
    others = [Member("zz.jpg", b"z" * 700, form="gnu"), Member("zz.cls", b"5", form="gnu")]
    return shards | {f"in-{len(shards)}.tar": Shard((*again, *others))}
