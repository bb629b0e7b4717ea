/* Tests on which meshes a rank computes parts of a formula of one process, so that its roundings are others. */
#include "every_move.h"

#include "check/formulas.h"
#include "comm/dry.h"
#include "step/run.h"

/* Whether the recipe's ranks compute formulas in pieces; destroys the recipe. */
static int shards_of(ad_recipe *recipe) {
  ad_run *run;
  ad_comm *comm;
  int64_t ranks;
  int sharded = -1;
  const ad_run_options options = {.size = sizeof options, .quiet = 1};
  must(ad_recipe_world(recipe, &ranks));
  must(ad_comm_open_dry(0, ranks, &comm));
  must(ad_run_create(comm, recipe, &options, &run));
  must(ad_formulas_sharded(run, &sharded));
  ad_run_destroy(run);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
  return sharded;
}

static int shards(const char *model, const char *mesh) {
  char text[1024];
  ad_recipe *recipe = NULL;
  snprintf(text, sizeof text,
           "name: formulas\nmodel: {layers: 1, d_model: 16, heads: 2, %s\nmesh: %s\n"
           "data: {text: [/usr/share/common-licenses], seq: 8}\n"
           "train: {global_batch: 8, steps: 2, lr: 1e-2}\n",
           model, mesh);
  must(ad_recipe_parse(text, "formulas.yaml", NULL, 0, &recipe));
  return shards_of(recipe);
}

/* Axes that cut samples, parameters' storage, blocks or layers leave each formula on one rank. */
static void formulas_are_sharded_along_tp_cp_and_experts_alone(void **state) {
  static const char moe[] = "kind: moe, experts: 4, top_k: 2, expert_hidden: 6}";
  static const char decompose[] =
      "kind: decompose}\nimportance: {layers: 1, d_model: 16, heads: 2}\n"
      "sites: [{match: \"blocks.*.attn.w[qo]\", components: 5}]\nplacement: disjoint";
  static const char colocated[] =
      "kind: decompose}\nimportance: {layers: 1, d_model: 16, heads: 2}\n"
      "sites: [{match: \"blocks.*\", components: 5}]\nplacement: colocated";
  static const struct {
    const char *model, *mesh;
    int sharded;
  } cases[] = {{"kind: gpt}", "dp_shard=1", 0},
               {"kind: gpt}", "dp_replicate=2 dp_shard=2", 0},
               {"kind: gpt}\nshard: {zero: 3}", "dp_shard=4", 0},
               {"kind: gpt}", "dp_shard=2 tp=2", 1},
               {"kind: gpt}", "dp_shard=2 cp=2", 1},
               {moe, "dp_shard=4\nviews: {sparse: \"efsdp=4 ep=1 etp=1\"}", 0},
               {moe, "dp_shard=4\nviews: {sparse: \"efsdp=2 ep=2 etp=1\"}", 1},
               {decompose, "{ci: \"dp=2\", blocks: \"block=2 dp=2\", adv: \"dp=2\"}", 0},
               {colocated, "{ci: \"dp=4\", blocks: \"block=2 dp=4\", adv: \"dp=4\"}", 0},
               {colocated, "{ci: \"dp=4\", blocks: \"block=4 dp=4\", adv: \"dp=4\"}", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (shards(cases[i].model, cases[i].mesh) != cases[i].sharded) fail_msg("case %zu: %s", i, cases[i].mesh);
}

/* ---- parts of a sum on tapes, along axes that shard samples alone ---- */

typedef ad_tensor *(*way)(ad_tape *t, ad_tensor *rows);

static ad_tensor *keep_rows(ad_tape *t, ad_tensor *rows) { return rows; }

/* Each rank holds one part of a sum: S0 -> P -> I -> S0. */
static ad_tensor *sum_rows(ad_tape *t, ad_tensor *rows) {
  ad_tensor *full = ad_all_reduce(t, ad_convert(t, rows, "dp,cp", AD_P), "dp,cp", AD_I);
  return ad_convert(t, ad_gelu(t, full), "dp,cp", AD_S(0));
}

/* Each rank's use of all rows leaves one part of their gradient: S0 -> R -> S0. */
static ad_tensor *gather_rows(ad_tape *t, ad_tensor *rows) {
  return ad_convert(t, ad_gelu(t, ad_all_gather(t, rows, "dp,cp", AD_R)), "dp,cp", AD_S(0));
}

static way of_rows;

static ad_status run_way(void *own, ad_phase_run *at) {
  ad_tape *t = ad_phase_tape(at);
  const every_batch *batch = &((every_model *)own)->batches[ad_phase_microbatch(at)];
  ad_array x = batch->x, weights = batch->weights; /* without data: backend dry reads none */
  x.dtype = weights.dtype = ad_tape_dtype(t);
  ad_tensor *rows = ad_gelu(t, ad_linear(t, ad_constant(t, &x), every_weight(at, W_SAME)));
  ad_tensor *out = ad_once(t, ad_convert(t, of_rows(t, rows), "tp", AD_R), "tp");
  ad_phase_loss(at, 0, ad_sum(t, ad_multiply(t, out, ad_constant(t, &weights))));
  return AD_OK;
}

static int shards_on_tape(way along, const char *mesh, const char *precision) {
  char text[512];
  ad_recipe *recipe = NULL;
  every_phase = run_way;
  of_rows = along;
  every_register();
  snprintf(text, sizeof text,
           "name: ways\nmodel: {kind: every}\nmesh: \"%s\"\nprecision: {%s}\n"
           "train: {seed: 4, global_batch: 9, microbatches: 2, steps: 5, lr: 1e-2}\n",
           mesh, precision);
  must(ad_recipe_parse(text, "ways.yaml", NULL, 0, &recipe));
  return shards_of(recipe);
}

/* Parts of a sum that have 16 bits are rounded before they are added, whichever axis they lie along. */
static void narrow_parts_of_a_sum_on_a_tape_shard_formulas(void **state) {
  static const char two[] = "dp_shard=2 tp=1", one[] = "dp_shard=1 tp=1";
  static const char bf16[] = "param: bf16, compute: bf16, reduce: f32", f32[] = "param: f32, compute: f32";
  static const struct {
    way along;
    const char *mesh, *precision;
    int sharded;
  } cases[] = {{keep_rows, two, bf16, 0},  {sum_rows, two, bf16, 1},    {sum_rows, two, f32, 0},
               {sum_rows, one, bf16, 0},   {gather_rows, two, bf16, 1}, {gather_rows, two, f32, 0},
               {gather_rows, one, bf16, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (shards_on_tape(cases[i].along, cases[i].mesh, cases[i].precision) != cases[i].sharded) fail_msg("case %zu", i);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(formulas_are_sharded_along_tp_cp_and_experts_alone),
                                     cmocka_unit_test(narrow_parts_of_a_sum_on_a_tape_shard_formulas)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
