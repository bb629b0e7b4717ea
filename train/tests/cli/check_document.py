"""Check that a document of `addend check --json` has what users and scripts rely on."""
import json
import sys

document = json.load(open(sys.argv[1]))
for key in "recipe world mesh backend dtype steps seconds loss norm params summary".split():
    assert key in document, key
if document["norm"]["ref"] is not None: assert document["norm"]["counted"] == [] and document["norm"]["cause"] is None, document["norm"]
assert {"dist", "ref"} <= set(document["loss"]) and {"dist", "ref", "rel_err"} <= set(document["norm"])
summary = document["summary"]
assert summary["pass"] is True and summary["replicas_equal"] is True, summary
directional = document.get("directional")
if directional and document["params"]:  # taken along with the check of a custom program
    assert directional["rel_err"] <= directional["bound"] == 1e-7 and directional["pass"] is True, directional
elif directional:
    assert document["params"] == [] and document["loss"]["ref"] is None
    assert directional["rel_err"] <= directional["bound"] == 1e-7, directional
else:
    assert len(document["params"]) == summary["params"] > 0
for param in document["params"]:
    expected = "name mesh layout storage reduced_over step ratio max_rel_err bound replicas_equal cause possible_causes".split()
    assert set(expected) <= set(param), param
    assert param["max_rel_err"] <= param["bound"] and param["replicas_equal"] and param["cause"] is None and param["possible_causes"] == [], param
    assert param["bound"] == 1e-12 or document["dtype"] != "f64", param
    assert abs(param["ratio"] - 1) < 1e-4, param
if "own_dtypes" in document:
    assert document["dtype"] == "f64" and {"worst_share_of_bound", "param", "pass"} <= set(document["own_dtypes"])
    assert document["own_dtypes"]["pass"] is True, document["own_dtypes"]
OPERATORS = """left_out doubled averaged more_axes fewer_axes other_group backward_identity backward_local
               first_microbatch_only once_everywhere""".split()
if "mutants" in document:
    assert document["survivors"] == 0
    derived = [entry for entry in document["mutants"] if entry["derived"]]
    names = [entry["name"] for entry in document["mutants"] if not entry["derived"]]
    for name in """mean-of-microbatch-means last-microbatch-only shifted-slice perturbed-replica
                   first-step-unsynchronised bucket-order bucket-size""".split():
        assert name in names, name
    for entry in document["mutants"]:
        expected = "name catalogue dtype killed_by param ratio expected_ratio only_loss cause possible_causes message derived".split()
        assert set(expected) <= set(entry), entry
        named = {cause["axes"] for cause in entry["possible_causes"] or [entry["cause"]] if cause}
        assert entry["axes"] == (named.pop() or None if len(named) == 1 else None), entry
        assert (entry["no_axis"] is None) == (entry["axes"] is not None), entry
        assert len(entry["possible_causes"]) != 1 and not (entry["cause"] and entry["possible_causes"]), entry
        for cause in entry["possible_causes"] or ([entry["cause"]] if entry["cause"] else []):
            assert set(cause) == {"kind", "axes", "factor", "text", "place", "no_axis"} and cause["text"], entry
            assert (cause["no_axis"] is None) == (cause["axes"] != ""), entry
        assert entry["killed_by"] in ("type", "number", "protocol", "no_effect"), entry
        if entry["killed_by"] != "number" or entry["ratio"] is None: assert entry["message"], entry
        only_changes_loss = entry["ratio"] is None and (entry["loss_rel_err"] or 0) > 1e-9  # which no parameter is the place of
        if entry["killed_by"] == "number" and not only_changes_loss: assert entry["param"] and (entry["cause"] or entry["possible_causes"]), entry
        if entry["expected_ratio"] is not None and entry["killed_by"] == "number":
            assert abs(entry["ratio"] / entry["expected_ratio"] - 1) < 1e-6, entry
    for entry in derived:
        assert {"place", "operator", "axis", "axes", "phase", "form"} <= set(entry["derived"]) and entry["dtype"] == "f64", entry
        assert entry["derived"]["place"].split(" (number ")[0].endswith(" over " + entry["derived"]["axes"]), entry
        assert (entry["derived"]["axis"] is None) == (entry["derived"]["operator"] not in ("more_axes", "fewer_axes", "other_group")), entry
        assert entry["derived"]["axis"] is None or f":{entry['derived']['axis']}" in entry["name"], entry
        assert entry["derived"]["operator"] in OPERATORS, entry
        assert entry["derived"]["phase"] in ("forward", "backward", "step"), entry
        assert entry["killed_by"] in (("type", "no_effect") if entry["derived"]["form"] == "record" else ("number", "no_effect")), entry
    why = {entry["name"]: entry["no_axis"] for entry in document["mutants"] if not entry["derived"]}
    assert why["bucket-order"] == why["bucket-size"] == "protocol" and why["last-microbatch-only"] in ("microbatches", "several"), why
    assert all(entry["killed_by"] != "no_effect" for entry in document["mutants"] if not entry["derived"])
    coverage = document["coverage"]
    count = {way: sum(entry["killed_by"] == way for entry in derived) for way in ("type", "number", "protocol", "no_effect")}
    assert coverage["mutants"] == len(derived) > 0 and coverage["places"] > 0 and coverage["survived"] == 0, coverage
    assert coverage["killed"] == count["type"] + count["number"] + count["protocol"], coverage
    assert (coverage["by_type"], coverage["by_number"], coverage["by_protocol"]) == (
        count["type"], count["number"], count["protocol"]), coverage
    assert coverage["no_effect"] == count["no_effect"] == coverage["mutants"] - coverage["killed"], coverage
    assert len({entry["name"] for entry in derived}) == len(derived), "every name says what was planted where"
else:
    assert not {"coverage", "survivors", "not_applicable"} & set(document)
