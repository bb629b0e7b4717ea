"""Test Transformers' architectures in a matrix: which there are, small models of the same kinds, batches that hide no
mistake, and cells: what several microbatches show, what a job may do beside the plain one, and inputs with images."""

import functools
import itertools
import tempfile
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from says import raises_facts, says_facts
from skips import skip_file

import addend
from addend.torch._checks._axes import Axes
from addend.torch._matrix import _architectures, _inputs, _matrix, _show, _shrink, _transformers, _variants
from addend.torch._matrix._cells import CANNOT_RUN, CANNOT_TELL, MATCHES, RUNS, WRONG, Layout
from addend.torch._matrix._tokens import FIRST, Tokens, token_loss

try:
    import transformers as tf
    from torch.distributed.fsdp import fully_shard
    from transformers.distributed.configuration_utils import DistributedConfig  # noqa: F401
except ImportError:
    skip_file(__name__, "this python3 has no Transformers with a DistributedConfig")


class Architectures(unittest.TestCase):
    def test_those_with_a_plan(self):
        found = _architectures.architectures()
        self.assertTrue({"llama", "qwen3_moe", "gpt_oss", "qwen3_vl"} <= set(found))
        self.assertFalse({"bert", "gpt2", "qwen3_vl_text"} & set(found))  # no plan; a part of another
        self.assertEqual(len(found), len(set(found)))

    def test_unknown(self):
        for name in ("lama", "google/gemma-3-1b-pt"):
            with raises_facts(self, addend.InvalidError, name, "model_type", "gemma3_text", "config.json"):
                _architectures.full_config(name)

    def test_a_folder_has_its_own_values(self):
        config = tf.LlamaConfig(num_hidden_layers=3, attention_bias=True, rms_norm_eps=3e-4)
        with tempfile.TemporaryDirectory() as folder:
            config.save_pretrained(folder)
            small, missing = _architectures.Full(folder).small(2, 1)
        self.assertEqual((small.attention_bias, small.rms_norm_eps, missing), (True, 3e-4, ()))

    def test_a_folder_s_vocabulary_divides_by_the_ranks_as_its_own_does(self):
        for rows, parts, wanted, even in (
            (262208, 2, 98, 98),
            (262208, 3, 98, 96),  # 262208 leaves 2, as 98 does
            (151936, 4, 100, 100),
            (50257, 2, 97, 96),
            (50257, 1, 97, 97),
            (60, 4, 60, 60),
            (61, 4, 61, 60),
        ):
            with self.subTest(rows, parts=parts), tempfile.TemporaryDirectory() as folder:
                tf.LlamaConfig(vocab_size=rows, num_hidden_layers=2).save_pretrained(folder)
                full = _architectures.Full(folder)
                self.assertEqual(full.small(2, 1, parts)[0].vocab_size, wanted)
                self.assertEqual(full.small(2, 1, parts, even=True)[0].vocab_size, even)
        named = _architectures.full("gemma3")
        for parts, even, wanted in ((2, False, 97), (2, True, 96), (5, True, 95)):
            small, _ = named.small(1, 1, parts, even)
            self.assertEqual(_shrink.vocabularies(small), [wanted], (parts, even))

    def test_what_a_folder_s_configuration_has_off_stays_off(self):
        text = {"num_hidden_layers": 4, "vocab_size": 200}
        for config, off, *kinds in (
            (tf.Gemma4TextConfig(**text), {"enable_moe_block": False, "num_experts": None}, "experts", "router"),
            (tf.Gemma4Config(text_config=text), {"vision_config": None, "audio_config": None}, "vision", "audio"),
            (
                tf.Qwen3MoeConfig(**text, num_experts=4, mlp_only_layers=[0, 1, 2, 3]),
                {"sliding_window": None},
                "experts",
            ),
            (tf.LlamaConfig(**text, attention_bias=False, pad_token_id=None), {"attention_bias": False}, "bias"),
        ):
            with self.subTest(type(config).__name__), tempfile.TemporaryDirectory() as folder:
                config.save_pretrained(folder)
                full = _architectures.Full(folder)
                small, missing = full.small(2, 1)
                self.assertEqual({name: getattr(small, name) for name in off}, off)
                self.assertEqual(missing, ())
                with torch.device("meta"):
                    made = _shrink.kinds_of(full.auto.from_config(small))
                self.assertEqual(made, full.kinds)
                found = {kind for kind in made for word in kinds if word in kind.lower()}
                self.assertEqual(found, set())

    def test_what_a_release_leaves_off_is_on_in_its_architecture(self):
        self.assertTrue(any("experts" in kind for kind in _architectures.Full("gemma4_text").kinds))

    def test_a_size_of_0_or_less_stays(self):
        sizes = _shrink.Sizes(2, 2)
        names = (
            "num_attention_heads num_key_value_heads mamba_n_heads moe_topk qk_head_dim mamba_d_ssm merged_hidden_size"
        )
        for name in (*names.split(), "n_shared_experts", "num_local_experts", "sliding_window", "n_inner"):
            for value in (0, -1):
                self.assertEqual(_shrink.value_of(name, value, sizes, 2, {name: value}), value, name)


class Small(unittest.TestCase):
    def test_every_kind_is_there_and_sizes_divide(self):
        for name, ranks, experts in (
            ("llama", 3, 1),
            ("qwen3_moe", 2, 4),
            ("gemma3_text", 2, 1),
            ("deepseek_v3", 1, 3),
        ):
            full = _architectures.full(name)
            small, missing = full.small(ranks, experts)
            with torch.device("meta"):
                model = full.auto.from_config(small)
            self.assertEqual(missing, (), name)
            self.assertEqual(full.kinds - _shrink.kinds_of(model), set(), name)
            self.assertLess(sum(p.numel() for p in model.parameters()), 100_000, name)
            self.assertEqual(small.num_attention_heads % ranks, 0, name)
            self.assertEqual(small.intermediate_size % ranks, 0, name)
            count = getattr(small, "num_experts", None) or getattr(small, "n_routed_experts", experts)
            self.assertEqual(count % experts, 0, name)

    def test_no_process_draws_numbers_of_its_own(self):
        seed_oss, _ = _architectures.full("seed_oss").small(2, 1)  # its own rates are 0.1
        self.assertEqual((seed_oss.attention_dropout, seed_oss.residual_dropout), (0.0, 0.0))
        phimoe, _ = _architectures.full("phimoe").small(2, 2)
        self.assertEqual(phimoe.router_jitter_noise, 0.0)

    def test_an_indexer_keeps_its_one_head(self):
        small, missing = _architectures.full("qwen4_exp_text").small(2, 2)
        self.assertEqual((small.indexer_kv_heads, missing), (1, ()))

    def test_what_is_missing_is_reported(self):
        layers = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2)), torch.nn.Linear(2, 2)]
        both, one = torch.nn.Module(), torch.nn.Module()
        both.layers, one.layers = torch.nn.ModuleList(layers), torch.nn.ModuleList(layers[1:])
        self.assertTrue(any("LayerNorm" in kind for kind in _shrink.kinds_of(both) - _shrink.kinds_of(one)))

    def test_layouts_are_those_of_its_plans(self):
        source = _transformers.Transformers(["llama", "qwen3_moe"])
        dense = {layout.name for layout in source.layouts("llama")}
        sparse = {layout.name for layout in source.layouts("qwen3_moe")}
        self.assertTrue({"tp=2", "fsdp=2", "fsdp=2 tp=2", "fsdp=1 tp=3"} <= dense)
        self.assertEqual({name for name in sparse - dense if "ep=" not in name}, set())
        self.assertIn("fsdp=2 ep=2", sparse)

    def test_lora_is_left_out_without_peft(self):
        for installed in (False, True):
            source = _transformers.Transformers(["llama"])
            with mock.patch.object(_variants, "has_peft", lambda found=installed: found):
                found = {layout.name for layout in source.layouts("llama") if layout.variant == "lora"}
                self.assertEqual(found, {"tp=2, lora", "fsdp=2, lora"} if installed else set())
                for asked, names in ((None, ["tp=2, lora", "fsdp=2, lora"]), ([{"tp": 2}], ["tp=2, lora"])):
                    note = source.note(asked)
                    self.assertEqual([name for name in names if name in note], [] if installed else names)
                    self.assertEqual("pip install peft" in note, not installed)
                self.assertEqual(source.note([{"fsdp": 3}]), "")
                for wanted in ("lora", "tp=2, lora"):
                    if installed:
                        self.assertIsNone(source.layout(wanted))
                        continue
                    with self.assertRaises(addend.InvalidError) as raised:
                        source.layout(wanted)
                    self.assertTrue(wanted in str(raised.exception) and "pip install peft" in str(raised.exception))

    def test_an_adapter_has_this_rank_s_part(self):
        whole, own = torch.nn.Linear(4, 6, bias=False), torch.nn.Linear(4, 3, bias=False)
        with mock.patch("torch.distributed.get_rank", lambda: 1):
            _variants.fill(own, dict(whole.named_parameters()))
        self.assertTrue(torch.equal(own.weight, whole.weight[3:]))

    def test_numbers_of_microbatches(self):
        source = _transformers.Transformers([])
        for variant, counts in (
            ("", [2, 1, 3]),
            ("frozen", [2, 1, 3]),
            ("lora", [2, 1, 3]),
            ("no_sync", [2, 3]),
            ("bf16", [1]),
        ):
            self.assertEqual(list(source.counts(Layout({"fsdp": 2}, variant=variant), [2, 1, 3])), counts)

    def test_axes_that_there_are_not(self):
        for sizes, *facts in (({"dp": 2}, "dp"), ({"ep": 2}, "ep")):
            with raises_facts(self, addend.InvalidError, *facts):
                _transformers.Transformers([]).layout(sizes)


class Batches(unittest.TestCase):
    def test_ranks_have_the_rows_of_the_whole(self):
        tokens = Tokens(97, ["dp_replicate", "fsdp"], 3)
        mesh = {"dp_replicate": 2, "fsdp": 2, "tp": 2}
        whole = tokens.batches(None, Axes(mesh))
        parts = [tokens.batches(rank, Axes(mesh, rank)) for rank in range(8)]
        for k, name in itertools.product(range(3), ("input_ids", "attention_mask", "weights")):
            joined = torch.cat([parts[rank][k][name] for rank in (0, 2, 4, 6)])
            self.assertTrue(torch.equal(joined, whole[k][name]))
            self.assertTrue(torch.equal(parts[2][k][name], parts[3][k][name]))  # ranks of tp have the same rows

    def test_they_hide_nothing(self):
        tokens = Tokens(97, ["fsdp"], 2)
        mesh = {"fsdp": 3}
        parts = [tokens.batches(rank, Axes(mesh, rank)) for rank in range(3)]
        counts = [[float(batch["weights"].sum()) for batch in part] for part in parts]
        self.assertEqual(len({round(count, 6) for part in counts for count in part}), 6)
        padded = [int((batch["attention_mask"] == 0).sum()) for part in parts for batch in part]
        self.assertEqual([count > 0 for count in padded], [True] + [False] * 5)
        seen = parts[0][0]
        self.assertTrue(bool((seen["weights"][seen["attention_mask"][:, 1:] == 0] == 0).all()))
        self.assertTrue(bool((seen["input_ids"][seen["attention_mask"] == 1] >= FIRST).all()))


def _made(name):
    full = _architectures.full(name)
    config, _ = full.small(2, 2)
    torch.manual_seed(1)
    return full.auto.from_config(config, dtype=torch.float64).train()


class Inputs(unittest.TestCase):
    def test_dropout_makes_no_row_depend_on_others(self):
        model = _made("seed_oss")
        self.assertEqual(_inputs.inputs_of(model, ["fsdp"], 2)[1], ())
        self.assertTrue(model.training)

    def test_what_draws_in_training_runs_in_evaluation(self):
        model = _made("phimoe")  # its router chooses experts at random in training
        _, missing_inputs = _inputs.inputs_of(model, ["fsdp"], 2)
        self.assertFalse(model.training)
        self.assertEqual(["random numbers" in reason for reason in missing_inputs], [True])

    def test_a_drafter_takes_states_of_another_model(self):
        model = _made("muse_glimmer_assistant")
        tokens, missing_inputs = _inputs.inputs_of(model, ["fsdp"], 2)
        batch = tokens.rows(torch.Generator().manual_seed(1), 2, tokens.padding)
        self.assertEqual(missing_inputs, ())
        self.assertEqual(batch["attention_mask"].shape[1], 2 * batch["noise_embeds"].shape[1])
        self.assertEqual(int((batch["attention_mask"] == 0).sum()), tokens.padding)


def counts_again(job, self, cell, folder):
    """The job of a cell, in which earlier microbatches count again in the first layer's norms with each later one."""
    made = job(self, cell, folder)
    load = made.arguments["parallelize"]

    def parallelize(model, mesh):
        loaded = load(model, mesh)
        for name, parameter in loaded.named_parameters():
            if name.endswith("layers.0.input_layernorm.weight"):
                parameter.register_post_accumulate_grad_hook(Again(cell.microbatches))
        return loaded

    made.arguments["parallelize"] = parallelize
    return made


class Again:
    def __init__(self, microbatches):
        self.microbatches, self.calls, self.before = microbatches, 0, None

    def __call__(self, parameter):
        if self.calls % self.microbatches:
            parameter.grad.add_(self.before)
        self.before = parameter.grad.clone()
        self.calls += 1


class Shifted(torch.nn.Module):
    """A model of which only an adapter is trained: it shifts the logits. Ranks may average its gradient."""

    def __init__(self, base, averages):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.shift = torch.nn.Parameter(torch.zeros(base.config.vocab_size, dtype=torch.float64))
        if averages and dist.is_initialized():
            self.shift.register_hook(self.average)

    def average(self, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()

    def forward(self, **inputs):
        out = self.base(**inputs)
        out.logits = out.logits + self.shift
        return out

    def unload(self):
        return self.base


def sharded_adapters(adapted, model):
    """The model with adapters, each of which FSDP2 is told of."""
    made = adapted(model)
    mesh = getattr(model, "_device_mesh", None)
    for name, module in made.named_modules():
        if mesh is not None and ".lora_" in name and isinstance(module, torch.nn.Linear):
            fully_shard(module, mesh=mesh["fsdp"])
    return made


def verdicts(report):
    return {one.cell.name: one.verdict for one in report.outcomes}


def why(report):
    return "\n".join(f"{one.cell.name}: {one.verdict}: {one.why}" for one in report.outcomes)


class Cells(unittest.TestCase):
    def test_what_two_microbatches_show(self):
        job = _transformers.Transformers.job
        with mock.patch.object(_transformers.Transformers, "job", lambda *words: counts_again(job, *words)):
            report = _matrix.matrix("llama", layouts={"fsdp": 1, "tp": 2}, microbatches=[2, 1], timeout=300)
        self.assertEqual(
            verdicts(report),
            {"llama, fsdp=1 tp=2, 2 microbatches": WRONG, "llama, fsdp=1 tp=2, 1 microbatch": MATCHES},
            why(report),
        )
        self.assertEqual([bug.params for bug in report.bugs], [("model.layers.*.input_layernorm.weight",)])
        self.assertEqual(report.bugs[0].microbatches, (2,))

    def test_what_shows_only_with_rows_that_the_ranks_do_not_divide(self):
        report = _matrix.matrix("gemma3_text", layouts=[{"fsdp": 2, "tp": 1}], microbatches=[1], timeout=300)
        (bug,), (even,) = report.bugs, report.even
        self.assertEqual((len(report.outcomes), bug.place, even.verdict), (1, "optimizer", MATCHES), even.why)
        says_facts(self, bug.cause, "lm_head.weight", "model.embed_tokens.weight")
        says_facts(self, bug.only, "97", "96")
        with tempfile.TemporaryDirectory() as folder:
            tf.Gemma3TextConfig().save_pretrained(folder)  # its 262208 rows divide
            report = _matrix.matrix(folder, layouts=[{"fsdp": 2, "tp": 1}], microbatches=[1], timeout=300)
        self.assertEqual([one.verdict for one in report.outcomes], [MATCHES], why(report))

    def test_jobs_that_freeze_synchronise_once_or_run_in_bf16(self):
        with mock.patch.object(_variants, "has_peft", lambda: False):
            report = _matrix.matrix("llama", layouts=[{"fsdp": 2}], microbatches=[2], timeout=300)
        self.assertEqual(
            verdicts(report),
            {
                "llama, fsdp=2, 2 microbatches": MATCHES,
                "llama, fsdp=2, frozen, 2 microbatches": MATCHES,
                "llama, fsdp=2, no_sync, 2 microbatches": MATCHES,
                "llama, fsdp=2, bf16, 1 microbatch": RUNS,
            },
            why(report),
        )
        trained = {o.cell.layout.variant: [p["name"] for p in o.report["params"]] for o in report.outcomes if o.report}
        self.assertEqual(trained["no_sync"], trained[""])
        self.assertTrue(trained["frozen"] and set(trained["frozen"]) < set(trained[""]))
        self.assertTrue(report.ok)  # though LoRA is not tried
        self.assertEqual([("fsdp=2, lora" in note, "pip install peft" in note) for note in report.notes], [(1, 1)])
        for text in (str(report), _show.github(report), _show.page(report), " ".join(report.document["notes"])):
            self.assertEqual(text.count("pip install peft"), 1, text)

    def test_adapters_that_nobody_sums_are_wrong(self):
        for averages, verdict in ((False, WRONG), (True, MATCHES)):
            adapted = mock.patch.object(_variants, "adapted", functools.partial(Shifted, averages=averages))
            found = self.of_variant("lora", adapted)
            self.assertEqual(found.verdict, verdict, found.why)
            self.assertEqual([param["name"] for param in found.report["params"]], ["shift"])

    def test_ranks_load_the_weights_that_one_process_has_below_its_adapters(self):
        """A model that is made once more on a rank, where numbers are f64, may be another one."""
        base, made = _transformers._Small.base, itertools.count()

        def other(small, *reported):
            model = base(small, *reported)
            with torch.no_grad():
                next(model.parameters()).mul_(1 + 0.1 * next(made))
            return model

        with mock.patch.object(_transformers._Small, "base", other):
            adapted = mock.patch.object(_variants, "adapted", functools.partial(Shifted, averages=True))
            found = self.of_variant("lora", adapted)
        self.assertEqual(found.verdict, MATCHES, found.why)

    @unittest.skipUnless(_variants.has_peft(), "this python3 has no PEFT")
    def test_lora_of_peft(self):
        adapted = _variants.adapted
        sharded = functools.partial(sharded_adapters, adapted)
        for sizes, function, verdict in (
            ({"tp": 2}, adapted, MATCHES),
            ({"fsdp": 2}, adapted, WRONG),  # PEFT 0.21.2 tells no group of FSDP of its adapters
            ({"fsdp": 2}, sharded, MATCHES),
        ):
            found = self.of_variant("lora", mock.patch.object(_variants, "adapted", function), sizes)
            self.assertEqual(found.verdict, verdict, found.why)
            trained = {param["name"].rpartition(".lora_")[0] for param in found.report["params"]}
            self.assertEqual({name.rpartition(".")[2] for name in trained}, {"q_proj", "v_proj"})
            self.assertEqual(found.unobserved, ())

    def test_a_job_that_never_synchronises_is_wrong(self):
        def never(model, microbatches, loss):
            model.set_requires_gradient_sync(False)
            for batch in microbatches:
                loss(model, batch).backward()

        found = self.of_variant("no_sync", mock.patch.object(_variants, "no_sync", never))
        self.assertIn(found.verdict, (WRONG, CANNOT_TELL, CANNOT_RUN), found.why)

    def test_a_gradient_in_bf16_that_is_not_finite_does_not_run(self):
        def infinite(model, batch):
            return token_loss(model, batch)[0] * float("inf"), 1

        found = self.of_variant("bf16", mock.patch.object(_transformers, "token_loss", infinite))
        self.assertEqual(found.verdict, CANNOT_RUN, found.why)
        says_facts(self, found.why, "bf16")

    def of_variant(self, variant, patch, sizes=None):
        layouts = [Layout(sizes or {"fsdp": 2}, variant=variant)]
        with patch, mock.patch.object(_transformers.Transformers, "layouts", lambda self, model: layouts):
            (found,) = _matrix.matrix("llama", microbatches=[2], timeout=300).outcomes
        return found

    def test_a_model_that_takes_images_gets_them(self):
        report = _matrix.matrix("gemma3", layouts={"fsdp": 1, "tp": 2}, microbatches=[1], timeout=300)
        self.assertEqual(list(verdicts(report).values()), [MATCHES], why(report))
        (one,) = report.outcomes
        unused = [name for name in one.unobserved if ".vision_tower.head." not in name]  # its pooled output is
        self.assertEqual((one.missing, unused), ((), []))
        self.assertTrue(any("vision" in param["name"] for param in one.report["params"]))


if __name__ == "__main__":
    unittest.main()
