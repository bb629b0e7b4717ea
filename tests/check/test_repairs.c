/* A repair is said only after it was tried, and what is said is right: every program that lacks one transition and is
 * refused for it is run with the conversion that its message names, and proven. */
#include "alone.h"
#include "plan/plan.h"
#include "tensor/repair.h"
#include "../support/draw.h"

static const char *const worlds[][2] = {
    {"tp", "model: {kind: gpt, layers: 1, d_model: 12, heads: 3}\nmesh: \"dp_shard=1 tp=3\"\n"},
    {"tp, a cut sequence",
     "model: {kind: gpt, layers: 1, d_model: 12, heads: 2, sequence_parallel: true}\nmesh: \"dp_shard=2 tp=2\"\n"},
    {"cp", "model: {kind: gpt, layers: 1, d_model: 12, heads: 2}\nmesh: \"dp_replicate=1 cp=3\"\n"},
    {"experts whole, scores before them",
     "model: {kind: moe, layers: 1, d_model: 12, heads: 2, experts: 5, top_k: 2, expert_hidden: 6, shared_experts: 5}\n"
     "mesh: \"dp_shard=2 tp=2\"\nviews: {sparse: \"efsdp=1 ep=4 etp=1\"}\n"},
    {"experts whole, scores after them",
     "model: {kind: moe, layers: 1, d_model: 12, heads: 3, experts: 5, top_k: 2, expert_hidden: 6,"
     " score_before_experts: false}\nmesh: \"dp_shard=1 tp=3\"\nviews: {sparse: \"efsdp=1 ep=3 etp=1\"}\n"},
    {"experts cut, scores after them",
     "model: {kind: moe, layers: 1, d_model: 12, heads: 2, experts: 5, top_k: 2, expert_hidden: 6,"
     " score_before_experts: false}\nmesh: \"dp_shard=2 tp=2\"\nviews: {sparse: \"efsdp=1 ep=2 etp=2\"}\n"},
    {"a loss for balance",
     "model: {kind: moe, layers: 2, d_model: 12, heads: 2, experts: 5, top_k: 2, expert_hidden: 6, balance_loss: 0.1}\n"
     "mesh: \"dp_shard=2 tp=2\"\nviews: {sparse: \"efsdp=1 ep=2 etp=2\"}\n"},
};
enum { WORLDS = sizeof worlds / sizeof *worlds };

static ad_recipe *recipe_of(const char *const world[2]) {
  char text[1024];
  ad_recipe *recipe = NULL;
  snprintf(text, sizeof text,
           "name: refused\n%sdata: {text: [/usr/share/common-licenses], seq: 12" UNEQUAL
           "}\n"
           "train: {seed: 4, global_batch: 12, steps: 5, lr: 1e-2, weight_decay: 0.1, clip: 0.5, microbatches: 2}\n",
           world[1]);
  must(ad_recipe_parse(text, world[0], NULL, 0, &recipe));
  return recipe;
}

typedef struct repaired_job {
  ad_proof_job job;
  ad_planting *planting;
  const ad_repair *repair;
} repaired_job;

static int prove(ad_comm *comm, void *context) {
  const repaired_job *p = context;
  ad_mending mending = {.repair = p->repair};
  ad_planting_begin(p->planting);
  ad_repair_begin(&mending);
  ad_status status = ad_prove(comm, &p->job);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK || !mending.fired || !p->planting->fired;
}

static void is_right_when_repaired(const ad_recipe *recipe, ad_sabotage *lacking, const ad_repair *repair) {
  ad_check_options options = {.size = sizeof options, .steps = 1};
  char text[256];
  ad_proof *proof;
  ad_launch_result result = {.size = sizeof result};
  int64_t ranks = 0;
  must(ad_recipe_world(recipe, &ranks));
  must(ad_proof_create(recipe, &proof));
  repaired_job job = {{.recipe = recipe, .options = &options, .steps = 1, .proof = proof}, &lacking->planting, repair};
  ad_launch_options launch = {.size = sizeof launch, .ranks = ranks, .function = prove, .context = &job};
  must(ad_launch(&launch, &result));
  proof->calls[0] = 0; /* of several ways to the right gradient it may be another than the program's own */
  if (!ad_proof_passes(proof, 0))
    fail_msg("%s: %s: not proven", lacking->name, ad_repair_print(repair, text, sizeof text));
  ad_proof_destroy(proof);
}

/* Whether it was refused for what an operation takes. */
static int is_said_as_it_is(const ad_recipe *recipe, ad_sabotage *lacking, const ad_repair *repair, int found) {
  char text[256];
  must(ad_derived_try_record(recipe, lacking));
  const char *said = lacking->message, *may = strstr(said, "this may repair it");
  if (found) {
    assert_non_null(strstr(said, "; this repairs it: "));
    assert_non_null(strstr(said, ad_repair_print(repair, text, sizeof text)));
    assert_non_null(strstr(said, ad_repair_states(repair) ? "if what is declared is so" : "moves fewer bytes"));
  }
  if (may) fail_msg("%s: could have been tried: %s", lacking->name, said);
  if (!found) printf("%s: %s\n", lacking->name, said);
  return found || strstr(said, "no conversion of one value there repairs it") != NULL;
}

static void every_repair_that_is_said_repairs(void **state) {
  int refused = 0, repaired = 0;
  for (int w = 0; w < WORLDS; w++) {
    ad_recipe *recipe = recipe_of(worlds[w]);
    ad_sabotages *listed;
    must(ad_sabotages_create(recipe, 0, 0, &listed));
    for (size_t i = 0; i < listed->count; i++) {
      ad_sabotage *one = &listed->list[i];
      ad_repair repair;
      int found = 0;
      if (one->known || !one->planting.in_record || one->planting.operator_ != AD_OPERATOR_LEFT_OUT) continue;
      if (one->planting.place.phase != AD_PLACE_FORWARD) continue;
      must(ad_derived_try_record(recipe, one));
      assert_true(one->planting.fired);
      if (one->caught != AD_CAUGHT_TYPE) continue;
      must(ad_derived_repair(recipe, one, &repair, &found));
      refused += is_said_as_it_is(recipe, one, &repair, found);
      if (!found || ad_repair_states(&repair)) continue;
      is_right_when_repaired(recipe, one, &repair);
      repaired++;
    }
    ad_sabotages_destroy(listed);
    ad_recipe_destroy(recipe);
  }
  printf("%d of %d that an operation refuses are repaired\n", repaired, refused);
  assert_true(repaired >= 20 && 10 * repaired >= 8 * refused);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_repair_that_is_said_repairs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
