/* Tests that every function that takes options refuses a struct of a wrong size, by the name of the struct. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "says.h"
#include "addend/addend.h"
#include "module/module.h"

static const char recipe_text[] =
    "model: {kind: gpt, layers: 1, d_model: 8, heads: 2}\n"
    "data: {text: [text], seq: 8}\n"
    "mesh: \"dp_shard=1\"\n"
    "train: {global_batch: 1, microbatches: 1, steps: 1, lr: 1e-3}\n";

/* The struct is named, and its field with the size that was given. */
static void refused_with(ad_status status, const char *name, const char *size) {
  assert_int_equal(status, AD_INVALID);
  assert_says_in("a struct of a wrong size", ad_last_error(), SAYS_FACTS(name, "size", size));
}
static void refused(ad_status status, const char *name) { refused_with(status, name, "1048576"); }

static void options_of_a_wrong_size_are_refused_by_name(void **state) {
  static const size_t wrong[64] = {1 << 20};  // represents any options struct; its size field is too large
  const void *given = wrong;
  ad_comm *comm;
  ad_mesh *mesh;
  ad_recipe *recipe;
  void *never = NULL;
  char *json;
  int holds;
  ad_launch_result result = {.size = sizeof result};
  assert_int_equal(ad_comm_open_alone(&comm), AD_OK);
  assert_int_equal(ad_mesh_create("dp_shard=1", &mesh), AD_OK);
  assert_int_equal(ad_recipe_parse(recipe_text, "r.yaml", NULL, 0, &recipe), AD_OK);
  refused(ad_reducer_create(comm, NULL, 0, given, (ad_reducer **)&never), "ad_reducer_options");
  refused(ad_store_create(comm, NULL, 0, given, (ad_store **)&never), "ad_store_options");
  refused(ad_optimizer_create(NULL, NULL, 0, given, (ad_optimizer **)&never), "ad_optimizer_options");
  refused(ad_tape_create(comm, mesh, given, (ad_tape **)&never), "ad_tape_options");
  ad_module_spec module = {.size = sizeof module, .name = "m", .mesh = mesh};
  refused(ad_module_create(comm, &module, given, (ad_module **)&never), "ad_module_options");
  refused(ad_launch(given, &result), "ad_launch_options");
  refused(ad_check(recipe, given, &holds, &json), "ad_check_options");
  refused(ad_train(comm, recipe, given), "ad_train_options");
  refused(ad_run_create(comm, recipe, given, (ad_run **)&never), "ad_run_options");
  ad_group all = ad_mesh_group(mesh, AD_AXES_DP, 0);
  ad_layout layout = ad_layout_all(mesh, AD_R), made;
  const ad_layout *operands[] = {&layout};
  ad_array array = {.layout = layout};
  const ad_array *arrays[] = {&array};
  ad_request request;
  ad_launch_result unfit = {0};
  ad_launch_options launch = {.size = sizeof launch, .ranks = 1, .argv = (char *[]){"true", NULL}};
  refused(ad_comm_run(comm, given), "ad_collective");
  refused(ad_comm_post(comm, given, &request), "ad_collective");
  refused_with(ad_comm_run(comm, (&(ad_collective){.op = AD_BARRIER, .group = all})), "ad_collective", "0");
  refused_with(ad_launch(&launch, &unfit), "ad_launch_result", "0");
  refused(ad_layout_propagate(given, operands, NULL, 1, &made), "ad_rule");
  refused(ad_reducer_create(comm, given, 1, NULL, (ad_reducer **)&never), "ad_param_spec");
  refused(ad_store_create(comm, given, 1, NULL, (ad_store **)&never), "ad_param_spec");
  refused(ad_param_initialise(given, 1, 0, &array), "ad_param_spec");
  refused(ad_module_create(comm, given, NULL, (ad_module **)&never), "ad_module_spec");
  module.params = given, module.param_count = 1;
  refused(ad_module_create(comm, &module, NULL, (ad_module **)&never), "ad_param_spec");
  module.param_count = 0, module.states = given, module.state_count = 1;
  refused(ad_module_create(comm, &module, NULL, (ad_module **)&never), "ad_state_spec");
  array = (ad_array){.dtype = AD_F32, .layout = layout};
  refused(ad_optimizer_create(arrays, given, 1, NULL, (ad_optimizer **)&never), "ad_param_spec");
  double rate = 7;
  refused(ad_schedule_at(given, 1, &rate), "ad_schedule");
  assert_true(rate == 7);
  assert_null(never);
  ad_recipe_destroy(recipe);
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(options_of_a_wrong_size_are_refused_by_name)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
