"""Holds a document of `addend check --json` against what users and scripts rely on."""
import json
import sys

document = json.load(open(sys.argv[1]))
for key in "recipe world mesh engine dtype steps seconds loss norm params summary".split():
    assert key in document, key
assert {"dist", "ref"} <= set(document["loss"]) and {"dist", "ref", "rel_err"} <= set(document["norm"])
summary = document["summary"]
assert summary["pass"] is True and summary["replicas_equal"] is True, summary
directional = document.get("directional")
if directional:
    assert document["params"] == [] and document["loss"]["ref"] is None
    assert directional["rel_err"] <= directional["bound"] == 1e-7, directional
else:
    assert len(document["params"]) == summary["params"] > 0
for param in document["params"]:
    expected = "name mesh layout storage reduced_over step ratio max_rel_err bound replicas_equal cause".split()
    assert set(expected) <= set(param), param
    assert param["max_rel_err"] <= param["bound"] and param["replicas_equal"] and param["cause"] is None, param
    assert param["bound"] == 1e-12 or document["dtype"] != "f64", param
    assert abs(param["ratio"] - 1) < 1e-4, param
if "sabotage" in document:
    assert document["survivors"] == 0
    names = [entry["name"] for entry in document["sabotage"]]
    for name in """local-count mean-of-microbatch-means last-microbatch-only shifted-slice perturbed-replica
                   first-step-unsynchronised bucket-order bucket-size""".split():
        assert name in names, name
    for entry in document["sabotage"]:
        expected = "name catalogue dtype caught_by param ratio expected_ratio only_loss cause message".split()
        assert set(expected) <= set(entry), entry
        assert entry["caught_by"] in ("type", "number", "protocol"), entry
        assert (entry["message"] is None) == (entry["caught_by"] == "number"), entry
        if entry["expected_ratio"] is not None:
            assert abs(entry["ratio"] / entry["expected_ratio"] - 1) < 1e-6, entry
