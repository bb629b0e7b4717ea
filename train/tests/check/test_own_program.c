/* Tests the check of a user's own program, which reads its own data and knows nothing of mistakes: mistakes in what a
 * rank reads can be made in it all the same, and the printed table ends with one verdict. */
#include "says.h"
#include "world.h"

#include <math.h>
#include <jansson.h>
#include "addend/data.h"
#include "addend/program.h"
#include "addend/safetensors.h"
#include "addend/train.h"
#include "base/error.h"
#include "check/mutants.h"
#include "files/file.h"
#include "kernels/kernels.h"
#include "plan/repairs.h"
#include "program/program.h"

enum { IN = 5, OUT = 3, ROWS = 9, MICROBATCHES = 2 };

typedef struct own_options {
  double apart; /* difference of the data of two steps */
  double wrong; /* difference of the data that the ranks of one world read */
  double decay; /* squares of the matrix in the loss: 0 none; 1 on every rank, a type error; 2 counted once */
} own_options;

typedef struct own_model {
  ad_program_setting setting;
  double apart, wrong, decay;
  ad_layout rows;
  ad_array x[MICROBATCHES];
  double data[MICROBATCHES][ROWS * IN], seen[ROWS * IN]; /* seen: the data in the tape's dtype */
} own_model;

static ad_status run_phase(void *own, ad_phase_run *at) {
  own_model *model = own;
  ad_tape *t = ad_phase_tape(at);
  ad_array rows = model->x[ad_phase_microbatch(at)];
  ad_cast(model->seen, ad_tape_dtype(t), rows.data, AD_F64, ad_array_numel(&rows));
  rows.dtype = ad_tape_dtype(t);
  rows.data = model->seen;
  ad_tensor *x = ad_constant(t, &rows);
  ad_tensor *w = ad_parameter(t, ad_phase_parameters(at), 0), *y = ad_linear(t, x, w);
  ad_tensor *loss = ad_sum(t, ad_multiply(t, y, y)), *squares = model->decay ? ad_sum(t, ad_multiply(t, w, w)) : NULL;
  if (model->decay == 2) squares = ad_once(t, squares, "dp");
  ad_phase_loss(at, 0, squares ? ad_add(t, loss, squares) : loss);
  return AD_OK;
}

static ad_status create(const void *options, ad_program *to, void **own) {
  own_model *model = calloc(1, sizeof *model);
  if (!model) return AD_MEMORY;
  *own = model;
  const ad_mesh *mesh = ad_program_mesh(to, 0);
  model->setting = *ad_program_setting_of(to);
  model->apart = ((const own_options *)options)->apart;
  model->wrong = ad_comm_size(model->setting.comm) > 1 ? ((const own_options *)options)->wrong : 0;
  model->decay = ((const own_options *)options)->decay;
  model->rows = ad_layout_all(mesh, AD_R);
  ad_layout_set(&model->rows, AD_AXES_DP, AD_S(0));
  ad_layout counted = ad_layout_all(mesh, AD_R);
  ad_layout_set(&counted, AD_AXES_DP, AD_P);
  ad_param_spec w = {.size = sizeof w,
                     .name = "w",
                     .shape = {2, {IN, OUT}},
                     .layout = ad_layout_all(mesh, AD_R),
                     .storage = ad_layout_all(mesh, AD_R),
                     .sharded = AD_AXES(AD_DP_SHARD),
                     .deviation = 0.5};
  ad_module_spec module = {.size = sizeof module, .name = "own", .mesh = mesh, .params = &w, .param_count = 1};
  ad_status status = ad_program_add_module(to, &module);
  if (!status) status = ad_program_add_count(to, &(ad_count_spec){sizeof(ad_count_spec), "rows", counted});
  if (!status) status = ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "squares"});
  return status ? status
                : ad_program_add_phase(to, &(ad_phase){.size = sizeof(ad_phase), .name = "own", .run = run_phase});
}

static ad_status read_batch(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  own_model *model = own;
  const ad_program_setting *setting = &model->setting;
  int64_t rank = ad_comm_rank(setting->comm), parts = setting->microbatches;
  for (int64_t m = 0; m < parts; m++) {
    ad_span mine = ad_batch_rows(&model->rows, rank, setting->global_batch, parts, m);
    ad_shape shape = {2, {ad_cut(setting->global_batch, m, parts).count, IN}};
    model->x[m] = ad_array_describe(setting->comm, AD_F64, &shape, &model->rows);
    model->x[m].data = model->data[m];
    for (int64_t i = 0, at = mine.first * IN; i < mine.count * IN; i++, at++)
      model->data[m][i] = sin((double)at) + model->apart * (double)(step * (at + 1)) + model->wrong;
    counted[0][m] = mine.count;
  }
  return AD_OK;
}

static void register_kind(void) {
  static const char *const modules[] = {"own", NULL};
  static const ad_key keys[] = {
      {"model.apart", AD_KEY_NUMBER, .offset = offsetof(own_options, apart), .most = 10},
      {"model.wrong", AD_KEY_NUMBER, .fallback = "0", .offset = offsetof(own_options, wrong), .most = 1},
      {"model.decay", AD_KEY_NUMBER, .fallback = "0", .offset = offsetof(own_options, decay), .most = 2}};
  static const ad_program_kind kind = {.size = sizeof kind,
                                       .name = "own",
                                       .help = "one matrix, for tests",
                                       .modules = modules,
                                       .keys = keys,
                                       .key_count = 3,
                                       .options_size = sizeof(own_options),
                                       .create = create,
                                       .read = read_batch};
  if (!ad_program_kind_find("own")) must(ad_program_register(&kind));
}

/* ---- the check of this program ---- */

typedef struct result {
  int holds;
  json_t *document;
  char *table;
} result;

static ad_recipe *recipe_of(const char *mesh, const char *model, const char *precision) {
  char text[512];
  ad_recipe *recipe;
  register_kind();
  snprintf(text, sizeof text,
           "name: own\nmodel: {kind: own, %s}\nmesh: \"%s\"\nprecision: {%s}\n"
           "train: {global_batch: 9, microbatches: 2, steps: 1, lr: 0.1}\n",
           model, mesh, precision);
  must(ad_recipe_parse(text, "own.yaml", NULL, 0, &recipe));
  return recipe;
}

static result check_as(const char *mesh, ad_check_options options, const char *model, const char *precision) {
  ad_recipe *recipe = recipe_of(mesh, model, precision);
  char *json = NULL;
  result found;
  must(ad_check(recipe, &options, &found.holds, &json));
  must(ad_check_list(json, AD_PLAIN_TEXT, &found.table));
  found.document = json_loads(json, 0, NULL);
  assert_non_null(found.document);
  free(json);
  ad_recipe_destroy(recipe);
  return found;
}

static result check(const char *mesh, double apart) {
  char model[64];
  snprintf(model, sizeof model, "apart: %g", apart);
  return check_as(mesh, (ad_check_options){.size = sizeof(ad_check_options), .mutate = 1}, model,
                  "param: f64, compute: f64");
}

static void release(result *found) {
  json_decref(found->document);
  free(found->table);
}

static const char *text_at(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

static const json_t *shifted_slice(const result *found) {
  const json_t *one;
  size_t i;
  json_array_foreach(json_object_get(found->document, "mutants"), i,
                     one) if (!strcmp(text_at(one, "name"), "shifted-slice")) return one;
  fail_msg("shifted-slice was not tried:\n%s", found->table);
  return NULL;
}

static int64_t survivors(const result *found) {
  return json_integer_value(json_object_get(found->document, "survivors"));
}

static void a_rank_that_reads_other_data_than_its_own_is_reported(void **state) {
  static const char *const meshes[] = {"dp=2", "dp_shard=3", "dp_replicate=3", "dp_replicate=2 dp_shard=2"};
  for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
    result found = check(meshes[m], 0.1);
    if (strcmp(text_at(shifted_slice(&found), "killed_by"), "number") != 0)
      fail_msg("on %s:\n%s", meshes[m], found.table);
    assert_int_equal(survivors(&found), 0);
    assert_true(found.holds && json_is_true(json_object_get(found.document, "holds")));
    assert_says_in(__func__, last_line(found.table), SAYS_FACTS("1"));
    release(&found);
  }
}

/* A type error before any rank starts names a repair that was tried; the repaired program (decay: 2) passes. */
static void what_repairs_a_program_whose_types_do_not_fit_is_reported(void **state) {
  static const char mesh[] = "dp_replicate=2 dp_shard=3", precision[] = "param: f64, compute: f64";
  ad_recipe *recipe = recipe_of(mesh, "apart: 0.1, decay: 1", precision);
  ad_check_options options = {.size = sizeof options};
  char *json = NULL;
  int holds = 0;
  assert_int_equal(ad_check(recipe, &options, &holds, &json), AD_TYPE);
  assert_says("dp_replicate,dp_shard", "2", "R-");
  /* No repair is named for a mutant that does not exist, though the program itself is refused. */
  ad_mutant nowhere = {.mutation = {.in_record = 1, .place = {.phase = AD_PLACE_FORWARD, .ordinal = 1000}}};
  ad_repair repair;
  assert_int_equal(ad_derived_repair(recipe, &nowhere, &repair, &holds), AD_OK);
  assert_false(holds);
  assert_int_equal(ad_derived_try_record(recipe, &nowhere), AD_OK);
  assert_text_says(nowhere.message, "dp_replicate");
  assert_null(strstr(nowhere.message, AD_REPAIRS));
  ad_recipe_destroy(recipe);
  result found = check_as(mesh, options, "apart: 0.1, decay: 2", precision);
  assert_true(found.holds);
  release(&found);
}

static void where_all_data_are_the_same_a_shift_has_no_effect_and_it_is_said_why(void **state) {
  result found = check("dp=3", 0);
  const json_t *shift = shifted_slice(&found);
  assert_string_equal(text_at(shift, "killed_by"), "no_effect");
  assert_text_says(text_at(shift, "message"), "rank 0");
  assert_int_equal(survivors(&found), 0);
  assert_true(found.holds);
  char row[512]; /* that of the shift, among others without effect */
  const char *at = strstr(found.table, "no_effect shifted-slice");
  assert_non_null(at);
  while (at > found.table && at[-1] != '\n') at--;
  snprintf(row, sizeof row, "%.*s", (int)strcspn(at, "\n"), at);
  assert_text_says(row, "no_effect");
  assert_says_in(__func__, last_line(found.table), SAYS_FACTS("1"));
  release(&found);
}

/* The data of two steps differ only in their last bits: exchanging batches changes bits, but no number beyond its
 * bound. */
static void a_survivor_is_the_verdict(void **state) {
  result found = check("dp=3", 4e-17);
  assert_string_equal(text_at(shifted_slice(&found), "killed_by"), "none");
  assert_int_equal(survivors(&found), 1);
  assert_true(json_is_true(json_object_get(json_object_get(found.document, "summary"), "pass")));
  assert_false(found.holds || json_is_true(json_object_get(found.document, "holds")));
  assert_text_says(found.table, "SURVIVED");
  assert_says_in(__func__, last_line(found.table), SAYS_FACTS("1", "shifted-slice"));
  release(&found);
}

/* A check in f32 does not see this mistake of the program, a check in f64 does: the check in the recipe's own dtypes
 * holds, but mutants are tried beside the f64 check, which does not. */
static void where_the_program_is_wrong_without_one_no_mutant_is_called_killed_or_survived(void **state) {
  ad_check_options options = {.size = sizeof options, .mutate = 1, .recipe_dtype = 1};
  result found = check_as("dp=3", options, "apart: 0.1, wrong: 1e-10", "param: f32");
  const json_t *untried = json_array_get(json_object_get(found.document, "untried"), 0), *one;
  size_t i;
  assert_true(json_is_true(json_object_get(json_object_get(found.document, "summary"), "pass")));
  assert_false(found.holds || json_is_true(json_object_get(found.document, "holds")));
  assert_string_equal(text_at(untried, "dtype"), "f64");
  assert_true(json_integer_value(json_object_get(untried, "mutants")) > 2);
  json_array_foreach(json_object_get(found.document, "mutants"), i, one) if (!strcmp(text_at(one, "dtype"), "f64"))
      assert_string_not_equal(text_at(one, "killed_by"), "none");
  json_array_foreach(json_object_get(found.document, "mutants"), i, one) if (!strcmp(text_at(one, "dtype"), "f64"))
      assert_string_not_equal(text_at(one, "killed_by"), "number");
  assert_int_equal(survivors(&found), 0);
  assert_text_says(found.table, "BAD", "f64");
  assert_says_in(__func__, last_line(found.table), SAYS_FACTS("1"));
  release(&found);
}

static void on_one_rank_nothing_can_be_shifted(void **state) {
  result found = check("dp=1", 0.1);
  const json_t *one;
  size_t i;
  int is_listed = 0;
  json_array_foreach(json_object_get(found.document, "not_applicable"), i, one) is_listed |=
      !strcmp(text_at(one, "name"), "shifted-slice") && !strcmp(text_at(one, "why"), "there is one rank");
  assert_true(is_listed);
  release(&found);
}

/* ---- a loss whose name is longer than any buffer ---- */

enum { LONG = 300 };
static char long_name[LONG + 1];

static ad_status measure(void *own, ad_phase_run *at) {
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *x = ad_constant(t, &((own_model *)own)->x[ad_phase_microbatch(at)]);
  ad_phase_loss(at, 1, ad_sum(t, ad_multiply(t, x, x)));
  return AD_OK;
}

static ad_status create_measured(const void *options, ad_program *to, void **own) {
  ad_loss_spec metric = {.size = sizeof metric, .name = long_name, .is_metric = 1};
  AD_TRY(create(options, to, own));
  AD_TRY(ad_program_add_loss(to, &metric));
  return ad_program_add_phase(to, &(ad_phase){.size = sizeof(ad_phase), .name = "measure", .run = measure});
}

static void a_dump_reports_a_loss_by_its_whole_name(void **state) {
  char folder[] = "/tmp/addend_own_XXXXXX", path[80], key[LONG + 8], *json = NULL;
  ad_recipe *recipe = recipe_of("dp=2", "apart: 0.1", "param: f64, compute: f64");
  ad_program_kind kind = *recipe->program;
  ad_safetensors *file;
  int holds = 0;
  kind.create = create_measured;
  recipe->program = &kind;
  memset(long_name, 'l', LONG);
  assert_non_null(mkdtemp(folder));
  must(ad_check(recipe, &(ad_check_options){.size = sizeof(ad_check_options), .steps = 1, .dump = folder}, &holds,
                &json));
  assert_true(holds);
  snprintf(path, sizeof path, "%s/step-0.gradients.safetensors", folder);
  must(ad_safetensors_open(path, &file));
  snprintf(key, sizeof key, "loss.%s", long_name);
  const char *reported = ad_safetensors_metadata(file, key);
  assert_true(reported && atof(reported) > 0);
  assert_non_null(ad_safetensors_metadata(file, "loss.squares"));
  key[LONG + 4] = 0;
  assert_null(ad_safetensors_metadata(file, key));
  ad_safetensors_close(file);
  must(ad_folder_remove(folder));
  free(json);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_rank_that_reads_other_data_than_its_own_is_reported),
      cmocka_unit_test(what_repairs_a_program_whose_types_do_not_fit_is_reported),
      cmocka_unit_test(where_all_data_are_the_same_a_shift_has_no_effect_and_it_is_said_why),
      cmocka_unit_test(a_survivor_is_the_verdict),
      cmocka_unit_test(where_the_program_is_wrong_without_one_no_mutant_is_called_killed_or_survived),
      cmocka_unit_test(on_one_rank_nothing_can_be_shifted),
      cmocka_unit_test(a_dump_reports_a_loss_by_its_whole_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
