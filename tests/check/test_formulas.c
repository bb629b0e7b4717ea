/* Tests on which meshes a rank computes parts of a formula of one process, so that its roundings are others. */
#include "world.h"

#include "check/formulas.h"
#include "comm/dry.h"
#include "train/run.h"

static int cuts(const char *model, const char *mesh) {
  char text[1024];
  ad_recipe *recipe = NULL;
  ad_run *run;
  ad_comm *comm;
  int64_t ranks;
  int cut = -1;
  const ad_run_options options = {.size = sizeof options, .quiet = 1};
  snprintf(text, sizeof text,
           "name: formulas\nmodel: {layers: 1, d_model: 16, heads: 2, %s\nmesh: %s\n"
           "data: {text: [/usr/share/common-licenses], seq: 8}\n"
           "train: {global_batch: 8, steps: 2, lr: 1e-2}\n",
           model, mesh);
  must(ad_recipe_parse(text, "formulas.yaml", NULL, 0, &recipe));
  must(ad_recipe_world(recipe, &ranks));
  must(ad_comm_open_dry(0, ranks, &comm));
  must(ad_run_create(comm, recipe, &options, &run));
  must(ad_formulas_cut(run, &cut));
  ad_run_destroy(run);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
  return cut;
}

/* Axes that cut samples, parameters' storage, blocks or layers leave each formula on one rank. */
static void formulas_are_cut_along_tp_cp_and_experts_alone(void **state) {
  static const char moe[] = "kind: moe, experts: 4, top_k: 2, expert_hidden: 6}";
  static const char decompose[] =
      "kind: decompose}\nimportance: {layers: 1, d_model: 16, heads: 2}\n"
      "sites: [{match: \"blocks.*.attn.w[qo]\", components: 5}]\nplacement: disjoint";
  static const char colocated[] =
      "kind: decompose}\nimportance: {layers: 1, d_model: 16, heads: 2}\n"
      "sites: [{match: \"blocks.*\", components: 5}]\nplacement: colocated";
  static const struct {
    const char *model, *mesh;
    int cut;
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
    if (cuts(cases[i].model, cases[i].mesh) != cases[i].cut) fail_msg("case %zu: %s", i, cases[i].mesh);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(formulas_are_cut_along_tp_cp_and_experts_alone)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
