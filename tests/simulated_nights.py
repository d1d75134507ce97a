"""Nights simulated with accepted processes, judged by the product's own rule."""

import json, glob, math, random, sys
from pathlib import Path
from collections import Counter
from statistics import fmean, pstdev, median
from perfsuite.judge.compare import shift_of, Policy, FOLLOWS
from perfsuite.judge.noise import Timing
from perfsuite.judge.rule import LIMITS, needs_pairs, within
from perfsuite.model import Verdict, Word

rng = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
world = []
for f in glob.glob(str(Path(__file__).parents[1] / "baselines/nvidia-h200-0282-00?/*.json")):
    for name, v in json.load(open(f)).get("variants", {}).items():
        if v["regime"] != "paced" or "cycles" not in v["metrics"]:
            continue
        t = v["metrics"]["time_us"]["values"]
        c = v["metrics"]["cycles"]["values"]
        if len(t) < 2:
            continue
        th = {u: [0.5 * math.log(a) + 0.5 * math.log(b) for a, b in zip(t[u], c[u])] for u in t}
        res = [x - fmean(r) for r in th.values() for x in r if len(r) > 2]
        k = math.sqrt(3 / 2)
        cards = [median(r) for r in th.values()]
        m = median(cards)
        if len(res) < 3:
            continue
        world.append(
            (
                name,
                math.exp(m) and v["metrics"]["time_us"]["center"],
                [k * x for x in res],
                [x - m for x in cards],
            )
        )
print(len(world), "variants; process sd median", median(pstdev(w[2]) for w in world))
P = Policy()
L = LIMITS["paced"]


def sides(us, res, level, n, unit):
    out = []
    for _ in range(n):
        x = us * math.exp(level + rng.choice(res))
        out.append(Timing(unit, x, x * 1600))
    return out


def one(w, e, mode, n=2):
    name, us, res, cards = w
    if mode == "own":
        lvl = rng.choice(cards)
        before = sides(us, res, lvl, 3, "a")
    elif mode == "pairs":
        lvl = 0
        before = None
    else:
        k = int(mode)
        pick = rng.sample(cards, min(k + 1, len(cards)))
        lvl = pick[0]
        before = [t for i, c in enumerate(pick[1:]) for t in sides(us, res, c, 3, f"b{i}")]
    if before is not None:
        now = sides(us, res, lvl + e, n, "a")
        s = shift_of(before, now, limits=L, policy=P, follows=0.5)
        v = Verdict(variant=name, word=s.word, changes=(s.change,))
        if not needs_pairs(v):
            return s.word, 0, within(s.change)
    a = []
    b = []
    while True:
        a += sides(us, res, lvl, 3, "a")
        b += sides(us, res, lvl + e, 3, "a")
        s = shift_of(a, b, limits=L, policy=P, follows=0.5, call=6)
        v = Verdict(variant=name, word=s.word, changes=(s.change,), in_turns=True)
        if len(a) >= 12 or not needs_pairs(v):
            return s.word, len(a), within(s.change)


quiet = [w for w in world if pstdev(w[2]) < 0.002]
print("quiet share", len(quiet) / len(world))
for which, pop in (("all", world), ("quiet", quiet)):
    for mode in ("own", "1", "2", "3", "pairs"):
        row = []
        for e in (0, 0.005, 0.01, 0.02):
            n = 6000 if e == 0 else 1500
            f = [one(rng.choice(pop), math.log1p(e), mode) for _ in range(n)]
            c = Counter(w.value for w, _, _ in f)
            if e == 0:
                xs = sorted(x for w, _, x in f if w is Word.SAME)
                row.append(
                    f"false {100 * (c['slower'] + c['faster']) / n:.2f}% unclear {100 * c['unclear'] / n:.1f}% paired {100 * sum(p > 0 for _, p, _ in f) / n:.0f}% pairs/var {fmean(p for _, p, _ in f):.2f} X<=.5% {100 * sum(x <= 0.005 for x in xs) / len(xs):.0f}% X90 {100 * xs[int(0.9 * len(xs))]:.2f}"
                )
            else:
                row.append(
                    f"+{100 * e:g}% {100 * c['slower'] / n:.0f} (same {100 * c['same'] / n:.0f})"
                )
        print(which, mode, " | ".join(row), flush=True)
