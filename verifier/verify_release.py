#!/usr/bin/env python3
"""Check a Sfumato release without Sfumato: one file, Python's standard library only.

    python3 -I verify_release.py RELEASE [--ledger LEDGER | --transcript TRANSCRIPT] [--key PUBLIC.pem] [--json]

1. card.json, card.html, model.safetensors and, if there is one, signature.json (ed25519) belong together.
2. The ledger, or what may be published of it (the transcript), is unbroken, and has the hashes of these files, the plan
   and the charges of this run, and answers with as much noise as was charged.
3. The numbers follow from the events, by two accountants of its own:
   PROVED, Renyi divergences in 60-digit decimals, every operation rounded upwards; and the analytic Gaussian mechanism.
   NUMERIC, delta(eps) by inverting the moments of the privacy loss, on two unlike grids; its error is stated.

Exit status: 0 everything agrees, 1 something disagrees, 2 nothing disagrees, but it cannot be proved from what is here.
"""
import argparse, base64, cmath, hashlib, html, json, math, re, sys
from array import array
from collections import Counter
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import lru_cache, reduce
from pathlib import Path

UP, DOWN = (Context(prec=60, rounding=r, Emax=10**15, Emin=-(10**15)) for r in (ROUND_CEILING, ROUND_FLOOR))
ORDERS, ONE = range(2, 257), Decimal(1)
REMOVE, REPLACE = "add or remove one unit", "add, remove or replace one unit"
TERMS, FILES = 20_000, {"card.json", "card.html", "model.safetensors", "signature.json"}  # terms of an inversion
class Disagrees(Exception): """Something that the release says is not so."""
class Unproved(Exception): """Something that cannot be decided from what was given."""
def require(holds, sentence):
    if not holds:
        raise Disagrees(sentence)

# ------------------------------------------------------------ the proved bound
# Decimal's ln and exp round to nearest, whatever the context says.
log_up, exp_up = (lambda x: UP.ln(x).next_plus(UP)), (lambda x: UP.exp(x).next_plus(UP))
def inverse_variance(event):
    """At least the sum of 1/sigma^2 over the blocks of an event, which share a batch (1/sigma_eff^2)."""
    sigmas = [DOWN.divide(Decimal(b["noise_multiplier"]), Decimal(b.get("moves", 1.0))) for b in event["blocks"]]
    return reduce(UP.add, (UP.divide(ONE, DOWN.multiply(sigma, sigma)) for sigma in sigmas))
@lru_cache(None)
def log_moments(rate, inverse, far):
    """ln E_Q[(P/Q)^a] of one step for whole orders a; ``far`` is the distance of the two answers in clip norms.
    Adding or removing: the binomial sum (Mironov, Talwar, Zhang 2019). Replacing: the two mixtures share their part of
    weight 1 - q, and E[(P/Q)^a] is jointly convex."""
    q, half = Decimal(rate), UP.divide(UP.multiply(inverse, Decimal(far * far)), Decimal(2))
    whole = {a: UP.multiply(Decimal(a * (a - 1)), half) for a in range(257)}
    if q == ONE:
        return {a: whole[a] for a in ORDERS}
    stay = UP.subtract(ONE, q)
    if far == 2:
        return {a: log_up(UP.add(stay, UP.multiply(q, exp_up(whole[a])))) for a in ORDERS}
    hit, stays = [ONE], [ONE]
    for _ in range(256):
        hit.append(UP.multiply(hit[-1], q)), stays.append(UP.multiply(stays[-1], stay))
    terms = [UP.multiply(hit[k], exp_up(whole[k]) if k > 1 else ONE) for k in range(257)]
    term = lambda a, k: UP.multiply(UP.multiply(Decimal(math.comb(a, k)), stays[a - k]), terms[k])
    return {a: log_up(reduce(UP.add, (term(a, k) for k in range(a + 1)))) for a in ORDERS}
def renyi(event, relation):
    """Upper bounds of the Renyi divergence of a whole event at every order."""
    if event["kind"] == "private selection":
        return renyi_of_selection(event, relation)
    moments = log_moments(event["rate"], inverse_variance(event), 2 if relation == REPLACE else 1)
    return {a: UP.divide(UP.multiply(Decimal(event["steps"]), moments[a]), Decimal(a - 1)) for a in ORDERS}
def renyi_of_selection(event, relation):
    """The best of a random number of trials (Papernot and Steinke 2022, theorem 2)."""
    if relation == REPLACE:
        raise Unproved("a selection under replacement")
    shape, gamma = Decimal(event["shape"]), Decimal(event["gamma"])
    composed = [[renyi(one, relation) for one in candidate] for candidate in event["candidates"]]
    trial = {a: max(sum((one[a] for one in many), Decimal(0)) for many in composed) for a in ORDERS}
    tail = log_up(UP.divide(ONE, gamma))
    if shape == 0:
        mean = UP.divide(UP.subtract(UP.divide(ONE, gamma), ONE), tail.next_minus().next_minus())
    else:
        less = DOWN.multiply(gamma, DOWN.subtract(ONE, UP.power(gamma, shape).next_plus()))
        mean = UP.divide(UP.multiply(shape, UP.subtract(ONE, gamma)), less)
    second = min((ONE - ONE / b) * trial[b] + tail / b for b in ORDERS)
    slack = Decimal("1e-20")  # far above the rounding of the few operations that are not directed
    return {a: trial[a] + (1 + shape) * second + log_up(mean) / (a - 1) + slack for a in ORDERS}
def converted(divergence, order, delta):
    """Epsilon from a Renyi divergence (Canonne, Kamath, Steinke 2020, proposition 12)."""
    a = Decimal(order)
    return UP.add(divergence, log_up((a - 1) / a) - (UP.ln(Decimal(delta)) + UP.ln(a)) / (a - 1) + Decimal("1e-24"))
def proved_epsilon(events, relation, delta, order=None):
    """An upper bound of epsilon; with ``order`` by the filter for choices that follow answers (Feldman, Zrnic)."""
    totals = [renyi(event, relation) for event in events]
    orders = ORDERS if order is None else [order]
    best = min(converted(sum((one[a] for one in totals), Decimal(0)), a, delta) for a in orders)
    found = math.nextafter(float(best), math.inf)
    mu = None if order else gaussian_mu(events, relation)
    if mu is not None:
        found = min(found, smallest(lambda eps: gaussian_delta(eps, mu), delta))
    return max(0.0, found)
def gaussian_mu(events, relation):
    """sensitivity / deviation of everything together, where every event is over all units; else None."""
    if not events or any(event["kind"] != "noisy sums" or event["rate"] != 1 for event in events):
        return None
    total = sum(event["steps"] * float(inverse_variance(event)) for event in events)
    return (2 if relation == REPLACE else 1) * math.sqrt(total) * (1 + 1e-14)
normal = lambda x: 0.5 * math.erfc(-x / math.sqrt(2))
def gaussian_delta(eps, mu):
    """Balle and Wang 2018, a hair upwards."""
    other = math.exp(eps) * normal(-mu / 2 - eps / mu) * (1 - 1e-12) if eps < 700 else 0.0
    return max(0.0, normal(mu / 2 - eps / mu) * (1 + 1e-13) - other)
def smallest(delta_of, delta):
    """The smallest eps with delta_of(eps) <= delta, from above."""
    low, high = 0.0, 1e4
    while high - low > 1e-10 * high and high > 1e-12:
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(middle) <= delta else (middle, high)
    return high

# ------------------------------------------------------------ the numeric bound
def log_mix(q, exponent):
    """ln(1 - q + q e^exponent)."""
    if exponent > 0:
        return exponent + math.log(q + (1 - q) * math.exp(-exponent)) if exponent < 700 else exponent + math.log(q)
    return math.log1p(q * math.expm1(exponent))
class Loss:
    """The composed privacy loss of (mu, q, steps) parts in one direction: "remove", "add" or "replace".
    delta(eps) = 1/(2 pi i) int M(s) e^(-s eps) / (s (s + 1)) ds on Re s = c > 0, where M is the moment generating
    function. The trapezoidal rule adds values of delta at other eps, hence errs upwards."""
    def __init__(self, parts, kind, width):
        self.kind, self.width = kind, width
        self.mu2 = sum(t * ((2 if kind == "replace" else 1) * mu) ** 2 for mu, q, t in parts if q == 1)
        self.parts = [part for part in parts if part[1] < 1]
    def nodes(self, mu, q, c):
        """(log weight, loss) over the answers of one step, far enough for moments of order c."""
        width = min(self.width, self.width * 2.5 * max(0.1, 1 / mu))
        right = 14 + (c + 1) * mu + (mu if self.kind == "replace" else 0)
        for k in range(int((14 + mu + right) / width) + 1):
            z = -14 - mu + k * width
            base = -0.5 * z * z - 0.5 * math.log(2 * math.pi) + math.log(width)
            one = log_mix(q, mu * z - mu * mu / 2)
            if self.kind == "remove":
                yield base + one, one
            elif self.kind == "add":
                yield base, -one
            else:
                yield base + one, one - log_mix(q, -mu * z - mu * mu / 2)
    def log_moment(self, c):
        total = c * (c + 1) * self.mu2 / 2
        for mu, q, steps in self.parts:
            exponents = [base + c * loss for base, loss in self.nodes(mu, q, c)]
            top = max(exponents)
            total += steps * (top + math.log(math.fsum(math.exp(one - top) for one in exponents)))
        return total
    def saddle(self, eps):
        """About the c that minimises ln M(c) - c eps - ln c (c + 1); any c is valid."""
        value, c = (lambda c: self.log_moment(c) - c * eps - math.log(c * (c + 1))), 4.0
        for ratio in (4.0, 2.0, 1.4, 1.15):
            c = min((min(400.0, max(0.02, c * ratio**k)) for k in range(-3, 4)), key=value)
        return c
    def delta(self, eps, more):
        """(delta, what truncation can have left out)."""
        scale = self.log_moment(c := self.saddle(eps))
        spread = max(0.0, self.log_moment(c * 1.02) + self.log_moment(c / 1.02) - 2 * scale) / (0.02 * c) ** 2
        h = 2 * math.pi / (more * max(24 * math.sqrt(spread), 60 / c, 3 * eps))
        lines = []
        for mu, q, steps in self.parts:
            grid = [(base + c * loss, loss) for base, loss in self.nodes(mu, q, c)]
            top = max(one for one, _ in grid)
            kept = [(math.exp(one - top), loss) for one, loss in grid if one > top - 75]
            mass = math.fsum(weight for weight, _ in kept)
            lines.append(([complex(w / mass) for w, _ in kept], [cmath.exp(1j * h * loss) for _, loss in kept], steps))
        total, quiet, j, work = 0.5 / (c * (c + 1)), 0, 0, sum(len(line[0]) for line in lines) or 1
        while quiet < 30 and j * work < 400 * TERMS and j < TERMS:
            j += 1
            s, product = complex(c, j * h), complex(1.0)
            if self.mu2:
                product = cmath.exp((s * (s + 1) - c * (c + 1)) * self.mu2 / 2)
            for index, (weights, turns, steps) in enumerate(lines):
                weights = [weight * turn for weight, turn in zip(weights, turns)]
                lines[index] = (weights, turns, steps)
                moment = sum(weights)
                product *= cmath.exp(steps * cmath.log(moment)) if moment else 0
            term = product / (s * (s + 1))
            total += (term * cmath.exp(-1j * j * h * eps)).real
            quiet = quiet + 1 if abs(term) < 1e-15 / (c * (c + 1)) else 0
        size = math.exp(min(700.0, scale - c * eps)) / math.pi
        return max(0.0, size * total * h), 0.0 if quiet >= 30 else size / (j * h)  # |M(s)| <= M(c)
def parts_of(events):
    """[(1/sigma, rate, steps)], equal mechanisms added up."""
    merged = Counter()
    for event in events:
        merged[math.sqrt(float(inverse_variance(event))), event["rate"]] += event["steps"]
    return [(*key, steps) for key, steps in merged.items()]
def single_delta(mu, q, kind, eps):
    """Of one subsampled step, exactly: the loss grows with the answer, so that one threshold divides the answers."""
    if kind == "add":  # P the normal law without, Q the mixture with the unit
        if math.exp(-eps) <= 1 - q:
            return 0.0
        z = (math.log1p((math.exp(-eps) - 1) / q) + mu * mu / 2) / mu
        return normal(z) - math.exp(eps) * ((1 - q) * normal(z) + q * normal(z - mu))
    z = (math.log((math.exp(eps) - 1 + q) / q) + mu * mu / 2) / mu
    return (1 - q) * normal(-z) + q * normal(mu - z) - math.exp(eps) * normal(-z)
def numeric_delta(events, relation, eps):
    """(delta at eps, its error): the worse direction, on two unlike grids."""
    if any(event["kind"] != "noisy sums" for event in events):
        raise Unproved("a selection has no numeric bound")
    parts, worst, error = parts_of(events), 0.0, 0.0
    for kind in ("replace",) if relation == REPLACE else ("remove", "add"):
        if len(parts) == 1 and parts[0][2] == 1 and parts[0][1] < 1 and kind != "replace":
            worst = max(worst, single_delta(parts[0][0], parts[0][1], kind, eps))
            continue
        found = [Loss(parts, kind, width).delta(eps, more) for width, more in ((0.04, 1.0), (0.025, 1.6))]
        worst = max(worst, *(delta for delta, _ in found))
        error = max(error, abs(found[0][0] - found[1][0]) + max(left for _, left in found))
    return worst, error

# ------------------------------------------------------------ the card
def check_events(events):
    """What an event says twice must agree; an unknown kind cannot be accounted for."""
    for event in events:
        if event["kind"] == "private selection":
            for candidate in event["candidates"]:
                check_events(candidate)
        elif event["kind"] == "noisy sums":
            name, sharded = event["name"], event.get("shards") is not None
            require(0 < event["rate"] <= 1 <= event["steps"] == int(event["steps"]), f"{name!r}: rate or steps")
            sound = [0 < b["noise_multiplier"] < math.inf and b.get("moves", 1.0) >= 1 for b in event["blocks"]]
            require(sound and all(sound), f"{name!r}: noise")
            follows = {"noise_multiplier": float(inverse_variance(event)) ** -0.5, "sensitivity": 1.0 + sharded}
            follows |= {"scheme": "poisson" if event["rate"] < 1 else "all", "relation": REPLACE if sharded else REMOVE}
            for key, value in follows.items():
                near = key == "noise_multiplier" and abs(event.get(key, value) - value) <= 1e-9 * value
                require(near or event.get(key, value) == value, f"event {name!r}: by its blocks {key} is {value}")
        elif event["kind"] != "raw access":
            raise Unproved(f"an event of the kind {event['kind']!r}, which this file does not know")
def tally(events):
    """{mechanism: steps}, so that lists can be compared."""
    found = Counter()
    for event in events:
        kept = {key: value for key, value in event.items() if key not in ("steps", "noise_multiplier")}
        found[json.dumps(kept, sort_keys=True)] += event.get("steps", 1)
    return found
def check_card(card):
    """Everything on the card that follows from other entries of the card; epsilon is checked elsewhere."""
    events, accounted = card["events"], card.get("planned") or card["events"]
    check_events(events), check_events(accounted)
    shards = sorted({event["shards"] for event in accounted if event.get("shards") is not None})
    require(card["relation"] == (REPLACE if shards else REMOVE), f"the relation is not {card['relation']!r}")
    units = f"of {' and '.join(map(str, shards))} shards" if shards else "unit"
    require(card["sampler"] == f"independent Poisson coins, one for each {units}", "the sampler is another")
    require(tally(events) <= tally(accounted), "more was asked than planned")
    if card["guarantee"] != "certified":
        require(card["guarantee"] == "no guarantee" and card["epsilon"] is None, "no guarantee, and an epsilon")
        return require(card["sentence"].startswith("NO GUARANTEE."), "the sentence promises something")
    require(not card["reasons"] and "FIXED SEED" not in card["randomness"], "certified, with reasons against it")
    require(accounted and all(event["kind"] != "raw access" for event in accounted), "certified without paid events")
    require(all(isinstance(line, str) for line in card["audits"]), "a line about audits is not text")
    require(card["unit"] in ("image", "person"), f"a unit {card['unit']!r}")
    require(card["sentence"] == sentence(card), "the sentence does not say the card's epsilon, delta, unit, best guess")
    together, said = card["collection_epsilon"], card.get("gaussian_mu")
    require(together is None or together >= card["epsilon"], "the collection's epsilon is below the release's")
    mu = gaussian_mu(accounted, card["relation"])
    require(said is None or mu and mu * (1 - 1e-9) <= said <= mu * (1 + 1e-4), "mu is not that of the events")
    whole = (card.get("composition") or {}).get("rule") != "renyi filter" or said is card["recognised"] is None
    require(whole, "a trade-off for runs that were chosen one by one")
def three_digits(value, towards):
    unit = 10.0 ** (math.floor(math.log10(value) + 1e-12) - 2)
    near = round(value / unit)
    value = (near if abs(value / unit - near) < 1e-9 * near else towards(value / unit)) * unit
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
def sentence(card):
    eps, delta, unit = card["epsilon"], card["delta"], card["unit"]
    factor = "more than 10\u00b2\u00b9" if eps > 50 else three_digits(math.exp(eps), math.ceil)
    return (
        f"Whether or not any one {unit} was in the collection changes the probability of every possible release by at "
        f"most a factor of e^{eps:g}, which is {factor}, except with probability {delta:g}, which is 1 in "
        f"{three_digits(1 / delta, math.floor)}. Someone who guesses whether a given {unit} was in it, and would be "
        f"right half the time without the release, can be right at most {100 * card['best_guess']:.1f} % of the time "
        "with it."
    )
def check_epsilon(card, told):
    """That epsilon covers the events, and that the best guess does."""
    eps, delta, relation = card["epsilon"], card["delta"], card["relation"]
    require(0 <= eps < math.inf and 0 < delta < 0.1, f"epsilon {eps} or delta {delta}")
    events, rule = card.get("planned") or card["events"], card.get("composition") or {"rule": "fixed in advance"}
    order = int(rule["order"]) if rule["rule"] == "renyi filter" else None
    proved = told["proved"] = proved_epsilon(events, relation, delta, order)
    mu, guess, definition = gaussian_mu(events, relation), card["best_guess"], guess_by_definition(eps, delta)
    if order is not None:
        require(eps >= proved * (1 - 1e-9), f"the card states eps {eps:g}, and the filter gives {proved:.6g}")
        return require(guess >= definition - 1e-9, f"a best guess of {guess:g}, and eps allows {definition:.5g}")
    told |= {"by": "proved bound"} if eps >= proved * (1 - 1e-12) else {}
    if mu is not None:
        require(eps >= proved * (1 - 1e-12), f"the card states eps {eps:g}, and the events cost {proved:.6g}")
        best = (1 + gaussian_delta(0.0, mu)) / 2
    elif any(event["kind"] != "noisy sums" for event in events):
        require(eps >= proved * (1 - 1e-9), f"the card states eps {eps:g}, and its selection costs {proved:.6g}")
        return  # the best guess follows from Renyi divergences, and is bound by the ledger alone
    else:
        if "by" not in told:
            found, error = numeric_delta(events, relation, eps)
            told |= {"by": "numeric bound", "delta": found, "error": error}
            require(found - error <= delta * (1 + 1e-4), f"at eps {eps:g} delta is {found:.4g}, not {delta:g}")
            if found + error > delta * (1 + 1e-3):
                raise Unproved(f"delta at eps {eps:g} is {found:.4g} +- {error:.2g}; proved is eps {proved:.6g}")
        at_zero, error = numeric_delta(events, relation, 0.0)
        best = (1 + at_zero - error) / 2
    require(guess >= min(1.0, best) - 1e-4, f"the card states a best guess of {guess:g}, and it is {best:.5g}")
guess_by_definition = lambda eps, delta: min(1.0, (1 + delta * math.exp(-eps)) / (1 + math.exp(-eps)))

# ------------------------------------------------------------ files
def parsed(text):
    unique = lambda pairs: require(len(dict(pairs)) == len(pairs), "an entry is written twice") or dict(pairs)
    return json.loads(text, object_pairs_hook=unique, parse_constant=lambda name: require(False, f"a number {name}"))
sha256 = lambda data: hashlib.sha256(data).hexdigest()
def check_weights(folder, card):
    body = (folder / "model.safetensors").read_bytes()
    require(sha256(body) == card.get("weights", sha256(body)), "the weights are not those that the card names")
    start, end = 8 + int.from_bytes(body[:8], "little"), 0
    header = parsed(body[8:start])
    require(header.pop("__metadata__", None) == {"sentence": card["sentence"]}, "the weights carry another sentence")
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        require(tensor["data_offsets"][0] == end, f"bytes before tensor {name!r} belong to no tensor")
        end = tensor["data_offsets"][1]
        values = array({"F32": "f", "F64": "d"}.get(tensor["dtype"], "b"))
        values.frombytes(body[start + tensor["data_offsets"][0] : start + end])
        require(all(map(math.isfinite, values)), f"tensor {name!r} holds numbers that are not finite")
    require(end == len(body) - start, "the weights hold bytes that belong to no tensor")
def check_page(folder, card):
    if (page := folder / "card.html").exists():
        unseen = r"(?s)<(style|script|template)\b.*?</\1>|<!--.*?-->|<[^>]+>"
        text, eps = html.unescape(re.sub(unseen, "", page.read_text(encoding="utf-8"))), card["epsilon"]
        numbers = "NO GUARANTEE" if eps is None else f"\u03b5 = {eps:g} at \u03b4 = {card['delta']:g}"
        require(card["sentence"] in text and numbers in text, "card.html does not say the card's sentence and numbers")
def lines_of(path):
    """(entry, or None where it is withheld, and the hash of everything up to it) of a ledger or a transcript."""
    content, found, current, version = path.read_bytes(), [], "0" * 64, None
    require(content.endswith(b"\n"), "the ledger's last line is torn")
    for number, line in enumerate(content[:-1].split(b"\n"), 1):
        if withheld := re.fullmatch(rb'\{"withheld": "([0-9a-f]{64})"\}', line):
            require(version == 3, "a line is withheld from a ledger whose chain does not allow it")
            found.append((None, current := sha256((current + withheld[1].decode()).encode())))
            continue
        require(end := re.search(rb', "hash": "([0-9a-f]{64})"\}\Z', line), f"line {number} has no hash")
        entry = parsed(body := line[: end.start()] + b"}")
        version = entry.get("version", 1) if version is None else version
        plain = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        current = sha256((current + (sha256(body) if version >= 3 else plain)).encode())
        require(current == end[1].decode(), f"line {number} does not fit the hash chain")
        found.append((entry, current))
    require(found and found[0][0] and found[0][0]["kind"] == "ledger", "the first line is not a ledger's")
    return found
def check_ledger(card, folder, path, whole, notes):
    lines, run, head = lines_of(path), card["run"], card["ledger_head"]
    require(not whole or all(entry for entry, _ in lines), "a transcript was given as the ledger: lines are withheld")
    entries, first, side = [entry for entry, _ in lines if entry], lines[0][0], path.with_name(path.name + ".head")
    heads = [(head, "card"), *([(parsed(side.read_text()), ".head")] if whole and side.exists() else [])]
    if whole and not side.exists():
        notes.append(f"without {side.name} nobody sees whether later lines of the ledger are missing")
    for at, where in heads:
        held = 1 <= at["length"] <= len(lines) and lines[at["length"] - 1][1] == at["hash"]
        require(held, f"the ledger has lost lines that its {where} names, or is another one")
    require(card.get("ledger", first.get("id")) == first.get("id"), "the card names another ledger")
    mine = lambda kind, one=run: [entry for entry in entries if entry.get("run") == one and entry["kind"] == kind]
    start, end = (mine(kind)[0] if len(mine(kind)) == 1 else None for kind in ("run", "end"))
    require(start and end, "the run does not have one beginning and one end on the ledger")
    if first.get("version", 1) >= 3 or "files" in end:
        require(lines[head["length"]][0] == end, "the run's end does not follow the card's head")
        released = {name: (folder / name).read_bytes() for name in end["files"] if (folder / name).exists()}
        released["card.json"] = json.dumps({**card, "audits": []}, indent=2, ensure_ascii=False).encode() + b"\n"
        if card["audits"] and released.pop("card.html", None):
            notes.append("lines about audits were added to the card and its page; only a signature covers them")
        for name in {"model.safetensors", *released}:
            require(sha256(released[name]) == end["files"][name], f"{name} is not the one that the ledger names")
    else:
        notes.append("made by an earlier version: nothing binds the weights and the card to the ledger")
    lineage, charges, plans = [run], [], Counter()
    for one in lineage:
        lineage += [p["release"] for p in mine("public", one) if p.get("release") and p["release"] not in lineage]
        shown, last = sum(entry.get("run") == one for entry in entries), (mine("end", one) or [{}])[0]
        require(last.get("entries", shown) == shown, f"{shown} entries of run {one} are shown, and it has others")
        planned = tally(event for begun in mine("run", one) for event in begun.get("plan", {}).get("events", []))
        charges += mine("charge", one)
        plans += planned | tally(entry["event"] for entry in mine("charge", one))
    check_events(events := [entry["event"] for entry in charges])
    require(list(card.get("lineage", lineage[1:])) == lineage[1:], "the card names other earlier releases")
    require(tally(events) == tally(card["events"]), "the card's events are not those charged")
    require(tally(card.get("planned") or card["events"]) == plans, "the card's plan is not the ledger's")
    adaptive = len({entry.get("from", entry["run"]) for entry in charges}) > 1
    rule = {"rule": "renyi filter", "order": first.get("order")} if adaptive else {"rule": "fixed in advance"}
    require(card.get("composition") in (None, rule), "the card joins its events by another rule")
    if adaptive and not card.get("composition") and card["guarantee"] == "certified":
        raise Unproved("an earlier version joined runs that were chosen one by one as if they were fixed in advance")
    said, then = (card["method"], card["variant"], card["parameters"]), (start["method"], start["variant"])
    parameters = start.get("parameters", card["parameters"])
    if start["method"] == "measured":  # --release-accuracy: the generator is that of the method inside
        parameters = json.loads(start["parameters"]["settings"])
        then = start["parameters"]["base"], parameters["variant"]
    if all(event["kind"] != "private selection" for event in events):
        require(said == (*then, parameters), "method, variant or parameters are not those of the ledger")
    if card["guarantee"] == "certified":
        for one in lineage:
            wrong = mine("seeded", one) or mine("own code", one) or any(begun["seeded"] for begun in mine("run", one))
            require(not wrong, f"certified, but run {one} was seeded or answered by code outside the trusted base")
        require(all(first["limit"][key] == card[key] for key in ("unit", "delta")), "another unit or delta is counted")
    check_noise(entries, lineage, notes)
    if not whole:
        return notes.append("a transcript hides what other runs have spent: collection_epsilon is not checked")
    before = [entry for entry, _ in lines[: head["length"]] if entry["kind"] == "charge"]
    if len({entry.get("from", entry["run"]) for entry in before}) > 1 and card["guarantee"] == "certified":
        spent = [entry["event"] for entry in before]
        kind = REPLACE if any(event.get("shards") is not None for event in spent) else REMOVE
        bound = proved_epsilon(spent, kind, card["delta"], first["order"])
        require(card["collection_epsilon"] >= bound * (1 - 1e-9), f"the collection's epsilon is {bound:.6g}")
def check_noise(entries, lineage, notes):
    """No more answers than were charged before, with sqrt(G) times their block's noise on each of G groups."""
    groups, blocks, left = {}, {}, Counter()
    for entry in (entry for entry in entries if entry.get("run") in lineage):
        for answer in entry.get("answers", ()):
            left[key := (entry["run"], answer["event"], answer["block"])] -= 1
            require(left[key] >= 0, f"an answer to {answer['event']!r} that was not charged")
            found = groups[key] = answer["groups"] if "groups" in answer else groups[key]
            wanted = math.sqrt(len(found)) * blocks[key] * (1 - 1e-9)
            enough = [0 < one["clip_norm"] * wanted <= one["standard_deviation"] < math.inf for one in found]
            require(enough and all(enough), f"too little noise on {answer['block']!r}")
        if entry["kind"] == "charge" and "from" not in entry:
            for block in entry["event"].get("blocks", ()):
                left[key := (entry["run"], entry["event"]["name"], block["name"])] += entry["event"]["steps"]
                blocks[key] = max(block["noise_multiplier"], blocks.get(key, 0))
    if missing := left.total():
        notes.append(f"{missing} answers that were charged are not described, as when a run is interrupted")

# ------------------------------------------------------------ signature (RFC 8032, section 5.1.7)
def ed25519_holds(public, signature, message):
    p, order = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
    d = -121665 * pow(121666, p - 2, p) % p
    def add(P, Q):
        a, b, c = (P[1] - P[0]) * (Q[1] - Q[0]), (P[1] + P[0]) * (Q[1] + Q[0]), 2 * P[3] * Q[3] * d
        e = 2 * P[2] * Q[2]
        return (b - a) * (e - c) % p, (e + c) * (b + a) % p, (e - c) * (e + c) % p, (b - a) * (b + a) % p
    def times(s, P, Q=(0, 1, 1, 0)):
        while s:
            Q, P, s = add(Q, P) if s & 1 else Q, add(P, P), s >> 1
        return Q
    def point(data):
        y = int.from_bytes(data, "little") & (2**255 - 1)
        square = (y * y - 1) * pow(d * y * y + 1, p - 2, p) % p
        x = pow(square, (p + 3) // 8, p)
        x = x * pow(2, (p - 1) // 4, p) % p if (x * x - square) % p else x
        require(len(data) == 32 and y < p and not (x * x - square) % p, "the signature is not one")
        return (p - x if x & 1 != data[31] >> 7 else x), y, 1, (p - x if x & 1 != data[31] >> 7 else x) * y % p
    s, base = int.from_bytes(signature[32:], "little"), point((4 * pow(5, p - 2, p) % p).to_bytes(32, "little"))
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % order
    left, right = times(s, base), add(point(signature[:32]), times(k, point(public)))
    same = all((left[i] * right[2] - right[i] * left[2]) % p == 0 for i in (0, 1))
    return same and len(signature) == 64 and s < order
def check_signature(folder, card, key, notes):
    if not (folder / "signature.json").exists():
        return require(key is None, "the release is not signed")
    entry = parsed((folder / "signature.json").read_text())
    signed, named = entry["signed"], bytes.fromhex(entry["public_key"])
    message = json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    require(ed25519_holds(named, base64.b64decode(entry["signature"]), message), "the signature does not hold")
    for name in ("card.json", "card.html", "model.safetensors"):
        require(signed.get(name) == sha256((folder / name).read_bytes()), f"{name} was changed after it was signed")
    wanted = "sfumato release 1", card["run"], card["ledger_head"]
    require((signed["format"], signed["run"], signed["ledger_head"]) == wanted, "another run was signed")
    if key is None:
        return notes.append("signed by the key that the signature names itself; --key says whose that must be")
    asked = base64.b64decode("".join(key.read_text().split("-----")[2].split()))
    require(asked[-32:] == named, "another key signed it")
def verify(release, ledger=None, transcript=None, key=None):
    """{"status", "verdict", "notes", ...} of a release's folder."""
    folder, notes, told = release / "release" if (release / "release").is_dir() else release, [], {}
    try:
        require(folder == release or not (release / "card.json").exists(), "two releases, one in the other's folder")
        notes += [f"nothing vouches for {name}" for name in sorted({path.name for path in folder.iterdir()} - FILES)]
        card = parsed((folder / "card.json").read_text(encoding="utf-8"))
        check_card(card), check_weights(folder, card), check_page(folder, card)
        check_signature(folder, card, key, notes)
        if ledger or transcript:
            check_ledger(card, folder, ledger or transcript, ledger is not None, notes)
        verdict, status = "the card promises nothing, so that there is nothing to prove", 0
        if card["guarantee"] == "certified":
            check_epsilon(card, told)
            if not (ledger or transcript):
                raise Unproved("the card fits its events; that these are all, only a ledger or a transcript shows")
            verdict = f"eps {card['epsilon']:g} at delta {card['delta']:g} per {card['unit']} agrees with the ledger"
    except Unproved as gap:
        status, verdict = 2, f"cannot prove: {gap}"
    except (Disagrees, KeyError, TypeError, ValueError, IndexError, ArithmeticError, AttributeError, OSError) as wrong:
        status, verdict = 1, f"DISAGREES: {wrong if isinstance(wrong, Disagrees) else repr(wrong)}"
    return {"status": status, "verdict": verdict, "notes": notes, **told}
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--ledger", type=Path), shown.add_argument("--transcript", type=Path)
    parser.add_argument("--key", type=Path, help="the public ed25519 key (PEM) that must have signed the release")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = verify(asked.release, asked.ledger, asked.transcript, asked.key)
    print(json.dumps(found, indent=1) if asked.json else "\nnote: ".join([found["verdict"], *found["notes"]]))
    sys.exit(found["status"])

if __name__ == "__main__":
    main()
