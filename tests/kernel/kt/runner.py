# SPDX-License-Identifier: GPL-2.0-only
"""Runs cases: images, virtual machines, e2fsck; two machines at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import traceback

import bases
import damage_tree
import debian
import hostile
import vm

from kt import helper, hostside, registry

REPO = pathlib.Path(__file__).resolve().parents[3]
FULL = bool(os.environ.get("ITREE_FULL"))

HERE = REPO / "tests" / "kernel"
BUILD = REPO / "build" / "tests"
# ITREE_KT_WORK: for a second run next to the first.
WORK = pathlib.Path(os.environ.get("ITREE_KT_WORK", BUILD / "kernel"))
SBIN = REPO / "build" / "e2fsprogs" / "root" / "sbin"
BATCH_CASES = 12
BATCH_COST = 150
START_LIMIT = 900  # seconds from the start of a machine to its first case


@dataclasses.dataclass
class Outcome:
    fails: list[str]
    stats: dict[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0
    skip: str = ""
    log: str = ""


def tool(name: str) -> str:
    return str(SBIN / name) if (SBIN / name).exists() else name


def digest(path: pathlib.Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


class Patience:
    """Ends a machine whose case exceeds its limit; other cases keep their full time.

    Called with the machine's output so far (see vm.run).
    """

    def __init__(self, cases: list[registry.Case], factor: float):
        self.limits = {c.id: c.longest(FULL) * factor for c in cases}
        self.seen, self.since, self.limit = 0, time.monotonic(), START_LIMIT * factor

    def __call__(self, text: str) -> bool:
        events = [found for line in text.splitlines() if (found := _event(line)) and found.keys() & {"begin", "end"}]
        if len(events) > self.seen:
            self.seen, self.since = len(events), time.monotonic()
            self.limit = self.limits.get(events[-1].get("begin"), self.limit)
        return time.monotonic() - self.since > self.limit


def _event(line: str) -> dict:
    """Parse a line of kt/guest.py, which prints JSON where a case begins and ends; {} for any other line."""
    with contextlib.suppress(ValueError):
        found = json.loads(line) if line.startswith("{") else {}
        return found if isinstance(found, dict) else {}
    return {}


class Runner:
    """Starts at once in the background; `outcome` waits for one result."""

    def __init__(
        self,
        results: list[str],
        kernel: pathlib.Path,
        itree: bool,
        jobs: int,
        keep: bool,
        plain: bool,
        append=(),
        type_="ext4",
    ):
        self.kernel = kernel
        self.itree = itree
        self.keep = keep
        self.plain = plain
        self.append = list(append)
        self.type = type_
        self.done: dict[str, Outcome] = {}
        self.cond = threading.Condition()
        self.locks: dict[str, threading.Lock] = {}
        self.closing = False
        self.error = ""
        wanted = list(dict.fromkeys(registry.case_of(r).id for r in results))
        cases = [registry.CASES[c] for c in wanted]
        self.pending = len(cases)
        self.batches: queue.Queue = queue.Queue()
        for batch in self.plan(cases):
            self.batches.put(batch)
        if not cases:
            return
        helper.build()
        WORK.mkdir(parents=True, exist_ok=True)
        self.cache = vm._cache_dir() / "kernel-tests"
        for old in WORK.glob("batch-*"):
            if time.time() - old.stat().st_mtime > 6 * 3600:
                shutil.rmtree(old, ignore_errors=True)
        self.workers = [threading.Thread(target=self.work, daemon=True) for _ in range(jobs)]
        for worker in self.workers:
            worker.start()

    @staticmethod
    def plan(cases: list[registry.Case]) -> list[list[registry.Case]]:
        """Distribute cases to few machines, the longest first; each prepared image gets its own."""
        batches: list[list[registry.Case]] = []
        open_: dict[tuple, list[registry.Case]] = {}
        for c in cases:
            if c.image or c.prepares:
                batches.append([c])
                continue
            key = (c.group, c.cpus, c.memory)
            batch = open_.get(key)
            if batch is None or len(batch) >= BATCH_CASES or sum(x.cost for x in batch) + c.cost > BATCH_COST:
                batch = open_[key] = []
                batches.append(batch)
            batch.append(c)

        def weight(batch):
            prepare = registry.CASES.get(batch[0].image)
            extra = 0
            while prepare:
                extra += prepare.cost
                prepare = registry.CASES.get(prepare.image)
            return sum(x.cost for x in batch) + extra

        return sorted(batches, key=weight, reverse=True)

    # --- results

    def put(self, result: str, outcome: Outcome) -> None:
        with self.cond:
            self.done[result] = outcome
            found = {k: dataclasses.asdict(v) for k, v in sorted(self.done.items())}
            (WORK / "results.json").write_text(json.dumps(found, indent=1) + "\n")
            self.cond.notify_all()

    def outcome(self, result: str) -> Outcome:
        with self.cond:
            while result not in self.done:
                if not any(w.is_alive() for w in self.workers):
                    return Outcome([self.error or "never ran"])
                self.cond.wait(2)
            return self.done[result]

    def close(self) -> None:
        """Stop what still runs."""
        self.closing = True
        # Machines of an interrupted run: each leads a process group of its own.
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError):
                fields = stat.read_text().rpartition(")")[2].split()
                pid, parent, group = int(stat.parent.name), int(fields[1]), int(fields[2])
                if parent == os.getpid() and group == pid:
                    os.killpg(group, signal.SIGKILL)

    # --- work

    def work(self) -> None:
        while not self.closing:
            try:
                batch = self.batches.get_nowait()
            except queue.Empty:
                return
            try:
                self.run_batch(batch)
            except Exception:
                self.error = traceback.format_exc(limit=-5)
                for c in batch:
                    for r in c.results():
                        if r not in self.done:
                            self.put(r, Outcome([f"the runner failed:\n{self.error}"]))

    def make_image(self, c: registry.Case, image: pathlib.Path, share: pathlib.Path) -> None:
        if c.image:
            ready, model = self.prepared(registry.CASES[c.image])
            subprocess.run(["cp", "--sparse=always", "--reflink=auto", ready, image], check=True)
            shutil.copy(model, share / "model")
            return
        if c.base:
            with self.cond:
                lock = self.locks.setdefault(f"base {c.base}", threading.Lock())
            with lock:
                ready = bases.get(c.base)
            subprocess.run(["cp", "--sparse=always", ready, image], check=True)
            if c.seeds:
                self.plan_damage(ready, c.planned(FULL), share / "damage")
            return
        subprocess.run(["truncate", "-s", c.size, image], check=True)
        itree = self.itree and c.itree
        features = ",".join(x for x in (c.features, "itree" if itree and not c.fast_commit else "") if x)
        cmd = [tool("mke2fs"), "-q", "-F", "-t", "ext4", "-U", "69747265-6500-4000-8000-000000000001"]
        cmd += [*(["-O", features] if features else []), *c.mkfs, image]
        res = subprocess.run(cmd, capture_output=True, text=True, check=False)
        if res.returncode:
            raise RuntimeError(f"mke2fs for {c.id}: {res.stderr.strip()}\n{cmd}")
        if itree and c.fast_commit:
            subprocess.run([tool("debugfs"), "-w", "-R", "feature itree", image], capture_output=True, check=True)

    @staticmethod
    def plan_damage(image: pathlib.Path, seeds, out: pathlib.Path) -> None:
        """For `itree-t damaged`: what each seed does to the trees of an image."""
        with open(out, "w") as f:
            for damage, sectors in hostile.edits(image, seeds, damage_tree.KINDS):
                f.write(f"image {damage}\n")
                f.writelines(f"{at} {data.hex()}\n" for at, data in sorted(sectors.items()))

    def prepared(self, c: registry.Case) -> tuple[pathlib.Path, pathlib.Path]:
        """The image of a preparing case, filled by the kernel under test; kept for the same inputs."""
        with self.cond:
            lock = self.locks.setdefault(c.id, threading.Lock())
        with lock:
            key = hashlib.sha256()
            step: registry.Case | None = c
            while step:
                key.update(f"{step.id} {step.params} {step.features} {step.mkfs} {step.size} {self.itree}".encode())
                step = registry.CASES.get(step.image)
            for path in (self.kernel, helper.PROGRAM, pathlib.Path(shutil.which(tool("mke2fs")))):
                key.update(digest(path).encode())
            name = f"{c.id}-{key.hexdigest()[:20]}"
            image, model = self.cache / f"{name}.img", self.cache / f"{name}.model"
            if image.exists() and model.exists():
                return image, model
            self.cache.mkdir(parents=True, exist_ok=True)
            at = pathlib.Path(tempfile.mkdtemp(prefix="prepare-", dir=WORK))
            try:
                outcomes = self.boot([c], at, keep_images=True)
                found = outcomes[c.results()[0]]
                if found.fails:
                    raise RuntimeError(f"{c.id} failed: {found.fails} (kernel log: {found.log})")
                for old in self.cache.glob(f"{c.id}-*"):
                    old.unlink(missing_ok=True)
                shutil.copy(at / c.id / "model", model)
                subprocess.run(["cp", "--sparse=always", at / f"{c.id}.img", f"{image}.part"], check=True)
                os.rename(f"{image}.part", image)
            finally:
                shutil.rmtree(at, ignore_errors=True)
            return image, model

    def run_batch(self, batch: list[registry.Case]) -> None:
        at = pathlib.Path(tempfile.mkdtemp(prefix="batch-", dir=WORK))
        left = list(batch)
        bad = False
        while left and not self.closing:
            outcomes = self.boot(left, at)
            for result, outcome in outcomes.items():
                bad |= bool(outcome.fails)
                self.put(result, outcome)
            before = len(left)
            left = [c for c in left if c.results()[-1] not in outcomes]
            if len(left) == before:
                for c in left:
                    for r in c.results():
                        self.put(r, Outcome(["not reached: the machine did not start"]))
                return
        if not bad and not self.keep:
            shutil.rmtree(at, ignore_errors=True)

    def server_root(self, packages: tuple[str, ...]) -> pathlib.Path:
        """The Debian root with these packages, from the cache or made now (some minutes)."""
        with self.cond:
            lock = self.locks.setdefault(f"root {packages}", threading.Lock())
        with lock:
            return debian.kept_root("server-roots", "bookworm", packages)

    def boot(self, cases: list[registry.Case], at: pathlib.Path, keep_images: bool = False) -> dict[str, Outcome]:
        """Run one machine; return the results of all finished cases, and of the one that killed it."""
        images = []
        outcomes: dict[str, Outcome] = {}
        ready = []
        roots: dict[str, str] = {}
        for c in cases:
            image, share = at / f"{c.id}.img", at / c.id
            share.mkdir(exist_ok=True)
            try:
                self.make_image(c, image, share)
                if c.root:
                    roots[c.id] = str(self.server_root(c.root))
            except (RuntimeError, OSError, subprocess.SubprocessError) as err:
                for r in c.results():
                    outcomes[r] = Outcome([str(err)])
                image.unlink(missing_ok=True)
                continue
            images.append(image)
            ready.append(c)
        if not ready:
            return outcomes
        job = {
            "cases": [c.id for c in ready],
            "share": str(at),
            "helper": str(helper.PROGRAM),
            "sbin": str(SBIN),
            "itree": self.itree,
            "plain": self.plain,
            "type": self.type,
            "full": FULL,
            "roots": roots,
        }
        (at / "job.json").write_text(json.dumps(job))
        factor = registry.PATIENCE if vm.uml.is_uml(self.kernel) else 1
        res = vm.run(
            ["/usr/bin/env", "python3", str(HERE / "kt" / "guest.py"), str(at / "job.json")],
            kernel=self.kernel,
            memory=self.memory(ready),
            cpus=max(c.cpus for c in ready),
            disks=images,
            shares=[at],
            timeout=factor * (START_LIMIT + sum(c.longest(FULL) for c in ready)),
            overdue=Patience(ready, factor),
            allow=[".*"],
            append=self.append,
            log=at / f"kernel-{ready[0].id}.log",
            env={"PYTHONDONTWRITEBYTECODE": "1"},
            udev=any(c.machine == registry.UDEV for c in ready),
        )
        ends, begun = {}, None
        for line in res.stdout.splitlines():
            found = _event(line)
            if "begin" in found:
                begun = found["begin"]
            elif "end" in found:
                ends[found["end"]] = found
        logs = self.split_log(res.log_text())
        for c in ready:
            if c.id in ends:
                outcomes.update(self.judge(c, ends[c.id], logs.get(c.id, ""), at, res.log, keep_images))
            elif c.id == begun or (begun is None and c is ready[0]):
                problems = vm.find_problems(logs.get(c.id, res.log_text()))
                text = "\n".join(["the machine died or hung in this case", *problems[:6], res.explain()[-1500:]])
                text += "\n" + "\n".join(logs.get(c.id, "").splitlines()[-30:])
                for r in c.results():
                    outcomes[r] = Outcome([text], log=str(res.log))
        return outcomes

    def memory(self, cases: list[registry.Case]) -> str:
        """Memory for the cases of a machine; the debug kernel needs half for its own records."""
        mib = max(int(float(c.memory[:-1]) * (1024 if c.memory[-1] == "G" else 1)) for c in cases)
        return f"{2 * mib if vm.uml.is_uml(self.kernel) else mib}M"

    @staticmethod
    def split_log(text: str) -> dict[str, str]:
        found: dict[str, list[str]] = {}
        current = None
        for raw in text.splitlines():
            line = vm.strip_stamp(raw)
            if line.startswith("itree-test: begin "):
                current = line.split()[-1]
            if current:
                found.setdefault(current, []).append(raw)
        return {k: "\n".join(v) for k, v in found.items()}

    def judge(self, c, end, log, at, logfile, keep_images) -> dict[str, Outcome]:
        outcomes = {}
        for part, name in zip(c.parts, c.results(), strict=True):
            got = end["parts"][part]
            outcomes[name] = Outcome(got["fails"], got["stats"], got["seconds"], log=str(logfile))
        last = outcomes[c.results()[-1]]
        last.fails += [f"kernel log: {x}" for x in vm.find_problems(log, c.allow)[:8]]
        image = at / f"{c.id}.img"
        if c.host:
            try:
                last.fails += getattr(hostside, c.host)(image, at / c.id, helper.PROGRAM)
            except hostside.Skip as err:
                last.skip = str(err)
            except (AssertionError, OSError, subprocess.SubprocessError) as err:
                last.fails.append(f"{c.host}: {err}")
        last.fails += self.fsck(c, image)
        if not any(o.fails for o in outcomes.values()) and not keep_images and not self.keep:
            image.unlink()
        return outcomes

    def fsck(self, c: registry.Case, image: pathlib.Path) -> list[str]:
        fails = []
        e2fsck = tool("e2fsck")
        if c.fsck == "repair":
            work = image.with_suffix(".repaired")
            subprocess.run(["cp", "--sparse=always", "--reflink=auto", image, work], check=True)
            res = subprocess.run([e2fsck, "-fy", work], capture_output=True, text=True, errors="replace", check=False)
            if res.returncode not in (0, 1):
                fails.append(f"e2fsck -fy gives {res.returncode}: {(res.stdout + res.stderr).strip()[-600:]}")
            fails += self.fsck_clean(e2fsck, work)
            work.unlink()
        elif c.fsck == "clean":
            fails += self.fsck_clean(e2fsck, image)
        return fails

    @staticmethod
    def fsck_clean(e2fsck: str, image: pathlib.Path) -> list[str]:
        res = subprocess.run([e2fsck, "-fn", image], capture_output=True, text=True, errors="replace", check=False)
        if res.returncode == 0:
            return []
        return [f"e2fsck -fn gives {res.returncode}: {(res.stdout + res.stderr).strip()[-600:]}"]
