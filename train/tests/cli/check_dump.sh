#!/usr/bin/env bash
# Tests what `addend check --dump` writes: all that its steps start from and result in, with the names, dtypes, shapes
# and metadata of audit/docs/dumps.md; the batch is drawn as train/include/addend/data.h says; a dumped target of a decomposition is
# the target.
#   check_dump.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$source" # recipes name the text relative to this folder
fail() { echo "FAILED: $*" >&2; [ ! -s "$work/err" ] || cat "$work/err" >&2; exit 1; }
dump() { # arguments: recipe, folder, options
  local recipe=$1 folder=$2; shift 2
  "$addend" check "recipes/$recipe.yaml" --dump "$work/$folder" "$@" >"$work/out" 2>"$work/err" || fail "exit $?: check $recipe $*"
}
judge() { python3 - . "$work" "$@" 2>"$work/err" || fail "${*:-one module}: another dump than the documents say"; }
text=(--set 'data.text=[programs/tests/oracle/fixtures/text/first.txt]' --set data.validation=0)

# ---- pools: batch and target are the same on every mesh, and so are the adversary's sources ----
for recipe in pools-1 pools-10 pools-ragged; do dump $recipe $recipe "${text[@]}" --set train.global_batch=7; done
judge pools-1 pools-10 pools-ragged <<'P'
import math, os, struct, sys
sys.path[:0] = [sys.argv[1] + "/train/tests/cli", sys.argv[1] + "/programs/tests/oracle"]
import draws, safetensors
work, names, kinds = sys.argv[2], sys.argv[3:], ("gradients", "inputs", "states", "weights")
wanted = ["constants.safetensors"] + [f"step-{n}.{kind}.safetensors" for n in (0, 1) for kind in kinds]
def numbers(tensor):
    return [x for (x,) in struct.iter_unpack("<d" if tensor[0] == "F64" else "<i", tensor[2])]
text = open("programs/tests/oracle/fixtures/text/first.txt", "rb").read()
for name in names:
    folder = f"{work}/{name}/"
    assert sorted(os.listdir(folder)) == wanted, sorted(os.listdir(folder))
    assert open(folder + "constants.safetensors", "rb").read() == open(f"{work}/{names[0]}/constants.safetensors", "rb").read(), name
    for step in (0, 1):
        dumped = {kind: safetensors.load(f"{folder}step-{step}.{kind}.safetensors") for kind in kinds}
        sizes = {"microbatch.0.tokens": 3, "microbatch.1.tokens": 4}  # of 7 samples
        assert {key: value[:2] for key, value in dumped["inputs"].items()} == {key: ("I32", [n, 12]) for key, n in sizes.items()}
        tokens = [x for value in dumped["inputs"].values() for x in numbers(value)]
        for sample in range(7):
            begin = draws.random_bits(1, draws.xxh64(b"data"), step * 7 + sample) * (len(text) - 12) >> 64
            assert tokens[12 * sample:12 * sample + 12] == list(text[begin:begin + 12]), (name, step, sample)
        climbs = 0 if step == 0 else 3  # two before the pass, one after
        assert numbers(dumped["states"].pop("adv.sources.steps")) == [climbs, climbs]
        shapes = {f"adv.sources.{m}.{i}.{what}": ("F64", [n, 12] + [34] * (i == 0)) for m, n in enumerate(sizes.values())
                  for i in range(7) for what in ("value", "first_moment", "second_moment")}
        assert {key: value[:2] for key, value in dumped["states"].items()} == shapes, (name, step)
        if step == 0:
            assert all(set(numbers(value)) == {0.5 if key.endswith("value") else 0} for key, value in dumped["states"].items())
        assert {key: value[:2] for key, value in dumped["weights"].items()} == {key: value[:2] for key, value in dumped["gradients"].items()}
        told = {key: float(value) for key, value in safetensors.metadata(f"{folder}step-{step}.gradients.safetensors").items()}
        coefficients = {"faithfulness": 3, "stochastic": 2, "sparsity": 0.5, "adversarial": 1.5}
        assert set(told) == {"loss", "norm", "count", "lr", "loss_scale", "norm.ci", "norm.blocks", "norm.adv"} | {f"loss.{l}" for l in coefficients}
        assert math.isclose(told["loss"], sum(c * told[f"loss.{l}"] for l, c in coefficients.items()), rel_tol=1e-12)
        for pool in ("ci", "blocks"):
            squares = sum(x * x for key, value in dumped["gradients"].items() if key.startswith(pool) for x in numbers(value))
            assert math.isclose(told[f"norm.{pool}"], math.sqrt(squares), rel_tol=1e-12), (name, step, pool)
        assert math.isclose(told["norm"], math.hypot(told["norm.ci"], told["norm.blocks"]), rel_tol=1e-12) and told["norm.adv"] == 0
        assert told["count"] == 7 * 12 and told["loss_scale"] == 0
        # Initial values: streams are the names without the module's.
        if step == 0:
            for key, (_, shape, _) in dumped["weights"].items():
                if len(shape) == 2 and key.endswith((".V", ".U", "ci.input.weight", "ci.output.weight")):
                    found, stream = numbers(dumped["weights"][key]), draws.xxh64(key.split(".", 1)[1].encode())
                    for e in (0, len(found) // 2, len(found) - 1):
                        assert math.isclose(found[e], draws.normal(1, stream, e) / math.sqrt(shape[0]), rel_tol=1e-13), (key, e)
target = safetensors.load(f"{work}/{names[0]}/constants.safetensors")
assert target["embedding.weight"][:2] == ("F64", [256, 16]) and target["blocks.1.mlp.down"][:2] == ("F64", [24, 16]) and len(target) == 20
P
dump pools-10 again "${text[@]}" --set train.global_batch=7 --set "target.weights=$work/pools-1/constants.safetensors"
diff -r "$work/pools-10" "$work/again" || fail "a target that was dumped is another one"
dump pools-10 sigmoid "${text[@]}" --set ascent.bounds=sigmoid --set ascent.rule=sign --set ascent.scope=batch --steps 1

# A decomposition's losses count every position, whatever data.valid says, which is for programs that learn to predict
# text.
dump pools-10 counted "${text[@]}" --set train.global_batch=7 --set 'data.valid=[0.5, 0]'
diff -r "$work/pools-10" "$work/counted" || fail "data.valid changes losses that are of every position"

# ---- one module: names of states have no module; a single loss is not listed by itself; there are no constants ----
dump moe-balance balance --set model.balance_rate=0.25
dump gpt-dp plain --steps 1
judge <<'P'
import os, struct, sys
sys.path.insert(0, sys.argv[1] + "/train/tests/cli")
import safetensors
work = sys.argv[2]
def states(folder, step):
    return {key: [x for (x,) in struct.iter_unpack("<f", value[2])] for key, value in safetensors.load(f"{work}/{folder}/step-{step}.states.safetensors").items()}
first, second = states("balance", 0), states("balance", 1)
kinds = {value[0] for value in safetensors.load(f"{work}/balance/step-0.states.safetensors").values()}
assert kinds == {"F32"} and set(first) == {"blocks.0.moe.bias", "blocks.1.moe.bias"} and not any(any(bias) for bias in first.values())
assert all(abs(x) in (0, 0.25) for bias in second.values() for x in bias) and any(any(bias) for bias in second.values())
told = safetensors.metadata(f"{work}/balance/step-0.gradients.safetensors")
assert {"loss.cross_entropy", "loss.balance"} < set(told) and "norm.model" not in told, told
assert sorted(os.listdir(f"{work}/plain")) == [f"step-0.{kind}.safetensors" for kind in ("gradients", "inputs", "weights")]
assert set(safetensors.metadata(f"{work}/plain/step-0.gradients.safetensors")) == {"loss", "norm", "count", "lr", "loss_scale"}
sigmoid = {key: set(struct.unpack(f"<{len(value[2]) // 8}d", value[2])) for key, value in safetensors.load(f"{work}/sigmoid/step-0.states.safetensors").items()}
assert len(sigmoid) == 2 * 7 + 1 and all(values == {0} for values in sigmoid.values()), sigmoid.keys()
P
echo "check_dump: all hold"
