/* Tests the modules of a run: what a recipe's shard section and the program's modules make of their reducers. */
#include "world.h"

#include "module/module.h"
#include "program/program.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "step/run.h"

enum { NUMEL = 1024, BYTES = 2 * NUMEL * 4 }; /* two parameters, which are reduced as f32 */

static ad_status no_phase(void *own, ad_phase_run *at) { return AD_OK; }
static ad_status no_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) { return AD_OK; }

static ad_status create_twins(const void *options, ad_program *to, void **own) {
  const ad_mesh *mesh = ad_program_mesh(to, 0);
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_param_spec one = {
      .size = sizeof one, .name = "one", .shape = {1, {NUMEL}}, .layout = layout, .storage = layout, .deviation = 1};
  ad_param_spec params[] = {one, one};
  params[1].name = "two";
  ad_module_spec module = {.size = sizeof module, .name = "twins", .mesh = mesh, .params = params, .param_count = 2};
  ad_status status = ad_program_add_module(to, &module);
  if (!status) status = ad_program_add_count(to, &(ad_count_spec){sizeof(ad_count_spec), "rows", layout});
  if (!status) status = ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "loss"});
  if (status) return status;
  return ad_program_add_phase(to, &(ad_phase){.size = sizeof(ad_phase), .name = "none", .run = no_phase});
}

static ad_recipe *parse(const char *text) {
  ad_recipe *recipe = NULL;
  if (ad_recipe_parse(text, "r.yaml", NULL, 0, &recipe)) fail_msg("%s", ad_last_error());
  return recipe;
}

static ad_run *open_run(const ad_recipe *recipe, int64_t rank, ad_comm **comm) {
  ad_run *run;
  int64_t ranks;
  must(ad_recipe_world(recipe, &ranks));
  must(ad_comm_open_dry(rank, ranks, comm));
  if (ad_run_create(*comm, recipe, NULL, &run)) fail_msg("%s", ad_last_error());
  return run;
}

static void close_run(ad_run *run, ad_comm *comm) {
  ad_run_destroy(run);
  ad_comm_close(comm);
}

/* A bucket holds as many bytes as shard.bucket_mib says: a byte less, and the two parameters take two buckets. */
static void a_bucket_is_of_as_many_mebibytes_as_the_recipe_says(void **state) {
  static const char *const modules[] = {"twins", NULL};
  static const ad_program_kind kind = {
      .size = sizeof kind, .name = "twins", .modules = modules, .create = create_twins, .read = no_read};
  must(ad_program_register(&kind));
  for (size_t less = 0; less < 2; less++) {
    char text[256];
    ad_comm *comm;
    snprintf(
        text, sizeof text,
        "model: {kind: twins}\nmesh: dp=2\ntrain: {global_batch: 2, steps: 1, lr: 1}\nshard: {bucket_mib: %.17g}\n",
        (double)(BYTES - less) / (1 << 20));
    ad_recipe *recipe = parse(text);
    ad_run *run = open_run(recipe, 0, &comm);
    assert_int_equal(ad_reducer_bucket_count(ad_module_reducer(ad_run_module(run, 0))), 1 + less);
    close_run(run, comm);
    ad_recipe_destroy(recipe);
  }
}

/* Stages have the same parameters' names, so what they dump is kept in separate files. */
static void files_of_a_stage_carry_its_number_where_there_are_several(void **state) {
  for (int64_t stages = 1; stages <= 3; stages++) {
    char text[512];
    snprintf(text, sizeof text,
             "model: {kind: gpt, layers: 3, d_model: 8, heads: 2}\ndata: {text: /usr/share/common-licenses, seq: "
             "6}\nmesh: pp=%d\n"
             "train: {global_batch: 3, microbatches: 3, steps: 1, lr: 1}\n",
             (int)stages);
    ad_recipe *recipe = parse(text);
    for (int64_t rank = 0; rank < stages; rank++) {
      char files[32] = "";
      ad_comm *comm;
      ad_run *run = open_run(recipe, rank, &comm);
      if (stages > 1) snprintf(files, sizeof files, "stage%d.", (int)rank);
      const ad_reducer *reducer = ad_module_reducer(ad_run_module(run, (size_t)rank));
      assert_string_equal(reducer->files, files);
      assert_string_equal(reducer->prefix, "");
      close_run(run, comm);
    }
    ad_recipe_destroy(recipe);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_bucket_is_of_as_many_mebibytes_as_the_recipe_says),
      cmocka_unit_test(files_of_a_stage_carry_its_number_where_there_are_several),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
