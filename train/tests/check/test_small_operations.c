/* Tests small operations between transitions, on sharded, replicated and partial values: the program passes, and all
 * mutants that are derived from it are killed. */
#include "every_move.h"

#include "draw.h"

enum { TAKEN = 20 };

/* Two rows of EVERY_WIDTH numbers made from one matrix, typed R on tp. */
typedef struct small_rows {
  ad_tensor *means, *largest;
} small_rows;

static small_rows rows_of(ad_tape *t, ad_tensor *matrix) {
  return (small_rows){ad_mean_over(t, matrix, 0), ad_max_over(t, matrix, 1)};
}

/* R -> P: a linear layer with sharded columns, scaled by the mean over them, with a bias that counts once. */
static ad_tensor *by_columns(ad_tape *t, ad_phase_run *at, ad_tensor *b, ad_tensor *row) {
  ad_tensor *c = ad_tanh(t, ad_linear(t, b, every_weight(at, W_COLUMNS)));
  ad_tensor *mean = ad_all_reduce(t, ad_mean_over(t, c, 1), "tp", AD_R); /* shape [rows], one mean for each row */
  ad_tensor *e = ad_linear(t, ad_relu(t, c), every_weight(at, W_ROWS));
  ad_tensor *bias = ad_once(t, row, "tp");
  return ad_scale_rows(t, ad_add_row(t, e, bias), ad_exp(t, mean));
}

/* R -> P through an even number of sharded columns, reshaped, transposed and back. */
static ad_tensor *by_even_columns(ad_tape *t, ad_phase_run *at, ad_tensor *b) {
  ad_tensor *c = ad_linear(t, b, every_weight(at, W_EVEN));
  c = ad_sqrt(t, ad_exp(t, c));
  int64_t rows = ad_tensor_array(c) ? ad_tensor_array(c)->shape.dim[0] : 0;
  c = ad_reshape(t, c, &(ad_shape){3, {rows, EVERY_EVEN, 1}});
  c = ad_transpose(t, ad_sum_over(t, c, 2), 0, 1);
  c = ad_ln(t, ad_transpose(t, ad_sigmoid(t, c), 1, 0));
  return ad_linear(t, c, every_weight(at, W_BACK));
}

/* The number of the first sample of microbatch m in the global batch. */
static int64_t first_sample(const every_model *model, size_t m) {
  const ad_program_setting *setting = model->setting;
  return ad_cut(setting->global_batch, (int64_t)m, setting->microbatches).first;
}

static ad_tensor *dropped(ad_tape *t, ad_phase_run *at, const every_model *model, ad_tensor *x) {
  return ad_dropout(t, x, 0.25, 7, "dropped", 0, first_sample(model, ad_phase_microbatch(at)));
}

static ad_status small_run(void *own, ad_phase_run *at) {
  every_model *model = own;
  ad_tape *t = ad_phase_tape(at);
  const every_batch *batch = &model->batches[ad_phase_microbatch(at)];
  small_rows rows = rows_of(t, every_weight(at, W_FULL));
  ad_tensor *a = ad_relu(t, ad_linear(t, ad_constant(t, &batch->x), every_weight(at, W_SAME)));
  ad_tensor *b = ad_convert(t, a, "tp", AD_R);
  ad_tensor *sum = dropped(t, at, model, ad_add(t, by_columns(t, at, b, rows.means), by_even_columns(t, at, b)));
  ad_tensor *full = ad_all_reduce(t, sum, "tp", AD_R);
  ad_tensor *normed = ad_layer_norm(t, full, rows.means, rows.largest, 1e-5);
  ad_tensor *both = ad_concat(t, (ad_tensor *[]){normed, b}, 2, 1);
  ad_tensor *out = ad_multiply(t, ad_slice(t, both, 1, 2, EVERY_WIDTH), normed);
  ad_phase_loss(at, 0, ad_once(t, ad_squared_error(t, out, ad_constant(t, &batch->weights)), "tp"));
  return AD_OK;
}

/* ---- checks on two meshes ---- */

static const struct {
  const char *mesh;
  int zero;
} worlds[] = {{"dp_shard=2 tp=3", 2}, {"dp_replicate=3 tp=2", 0}};
enum { WORLDS = sizeof worlds / sizeof *worlds };

static void it_matches(void **state) {
  for (int i = 0; i < WORLDS; i++) {
    ad_recipe *recipe = every_recipe(worlds[i].mesh, worlds[i].zero);
    ad_check_options options = {.size = sizeof options};
    int holds = 0;
    char *json = NULL;
    must(ad_check(recipe, &options, &holds, &json));
    if (!holds) fail_msg("%s", json);
    free(json);
    ad_recipe_destroy(recipe);
  }
}

static void no_mutant_survives_in(int world) {
  ad_recipe *recipe = every_recipe(worlds[world].mesh, worlds[world].zero);
  ad_check_options options = {.size = sizeof options, .mutate = 1};
  ad_check_result *scratch;
  ad_mutants *listed, *found;
  char what[128];
  must(ad_check_result_create(recipe, &scratch));
  must(ad_mutants_create(recipe, 0, 0, &listed));
  snprintf(what, sizeof what, "derived mistakes of small operations on %s", worlds[world].mesh);
  draw drawn = draw_cases(what, (int)listed->derived, 0, TAKEN);
  assert_true(listed->derived > TAKEN);
  must(ad_mutants_create(recipe, drawn.taken, drawn.seed, &found));
  must(ad_mutants_try(recipe, &options, scratch, found));
  for (size_t i = 0; i < found->count; i++)
    if (found->list[i].killed_by == AD_KILLED_BY_NONE)
      fail_msg("%s survived on %s: %s", found->list[i].name, worlds[world].mesh, found->list[i].message);
  ad_mutants_destroy(listed);
  ad_mutants_destroy(found);
  ad_check_result_destroy(scratch);
  ad_recipe_destroy(recipe);
}

static void no_derived_mutant_survives(void **state) {
  for (int i = 0; i < WORLDS; i++) no_mutant_survives_in(i);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(it_matches),
      cmocka_unit_test(no_derived_mutant_survives),
  };
  every_phase = small_run;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
