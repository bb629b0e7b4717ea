/* A program of two pools (disjoint sets of ranks) and its check. A producer on three ranks computes h = gelu(x A) from
 * its slices of the batch. A consumer on two other ranks computes the loss, the sum of (h B) squared. From types and a
 * bridge, addend derives which rank sends what to which rank and what is summed. The check compares every gradient with
 * that of one process, and tries mutants to show that it would notice bugs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "addend/check.h"
#include "addend/train.h"

enum { IN = 5, MID = 4, OUT = 3, PRODUCER = 0, CONSUMER = 1, MICROBATCHES_MAX = 8 };
static const char *const hidden[] = {"h", NULL};

static const char recipe_text[] =
    "model: {kind: two_pools}\n"
    "mesh: {producer: 'dp=3', consumer: 'dp=2'}\n"
    "placement: disjoint\n"
    "train: {global_batch: 12, microbatches: 2, steps: 1, lr: 0.1}\n";

typedef struct two_pools {
  ad_program_setting setting;
  ad_layout rows; /* layout of the batch on the producer, whose ranks shard the rows */
  ad_array x[MICROBATCHES_MAX];
  ad_bridge *bridge;
} two_pools;

/* ---- the phase of each pool: what it computes in a microbatch ---- */

static ad_status produce(void *own, ad_phase_run *at) {
  two_pools *p = own;
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *x = ad_constant(t, &p->x[ad_phase_microbatch(at)]);
  ad_tensor *a = ad_parameter(t, ad_phase_parameters(at), 0);  // A is R, so each rank's gradient of A is an addend
  ad_phase_give(at, "h", ad_gelu(t, ad_linear(t, x, a)));
  return AD_OK;
}

static ad_status consume(void *own, ad_phase_run *at) {
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *b = ad_parameter(t, ad_phase_parameters(at), 0);
  ad_tensor *y = ad_linear(t, ad_phase_need(at, "h"), b);  // the slice of h that the bridge sent to this rank
  ad_phase_loss(at, 0, ad_sum(t, ad_multiply(t, y, y)));   // type P: each rank has the sum over its own rows
  return AD_OK;
}

/* ---- what the program consists of: modules, count, loss, phases, and the transfer between them ---- */

static ad_layout batch_on(const ad_mesh *mesh) {
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES_DP, AD_S(0));
  return layout;
}

static ad_status add_module(ad_program *to, const char *name, size_t module, const char *matrix, ad_shape shape) {
  const ad_mesh *mesh = ad_program_mesh(to, module);
  ad_param_spec w = {.size = sizeof w,
                     .name = matrix,
                     .shape = shape,
                     .layout = ad_layout_all(mesh, AD_R),
                     .storage = ad_layout_all(mesh, AD_R),
                     .sharded = AD_AXES(AD_DP_SHARD),
                     .deviation = 0.5};
  return ad_program_add_module(
      to,
      &(ad_module_spec){.size = sizeof(ad_module_spec), .name = name, .mesh = mesh, .params = &w, .param_count = 1});
}

static ad_status create_pools(const void *options, ad_program *to, void **own) {
  two_pools *p = calloc(1, sizeof *p);
  if (!p) return AD_MEMORY;
  *own = p;
  p->setting = *ad_program_setting_of(to);
  AD_TRY(add_module(to, "producer", PRODUCER, "A", (ad_shape){2, {IN, MID}}));
  AD_TRY(add_module(to, "consumer", CONSUMER, "B", (ad_shape){2, {MID, OUT}}));
  p->rows = batch_on(ad_program_mesh(to, PRODUCER));
  ad_layout there = batch_on(ad_program_mesh(to, CONSUMER)), counted = there;
  ad_layout_set(&counted, AD_AXES_DP, AD_P);  // type P: each rank counts its own rows
  AD_TRY(ad_program_add_count(to, &(ad_count_spec){sizeof(ad_count_spec), "rows", counted}));
  AD_TRY(ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "squares"}));
  // Ragged, because 3 slices of the batch do not align with 2.
  ad_bridge_options ragged = {.size = sizeof ragged, .ragged = 1};
  AD_TRY(ad_bridge_create((ad_comm *)(uintptr_t)p->setting.comm, &p->rows, &there, &ragged, &p->bridge));
  AD_TRY(ad_program_add_phase(
      to,
      &(ad_phase){.size = sizeof(ad_phase), .name = "produce", .module = PRODUCER, .gives = hidden, .run = produce}));
  AD_TRY(ad_program_add_transfer(to, &(ad_transfer_spec){.size = sizeof(ad_transfer_spec),
                                                         .value = "h",
                                                         .module = CONSUMER,
                                                         .bridge = p->bridge,
                                                         .shape = {2, {p->setting.global_batch, MID}}}));
  return ad_program_add_phase(
      to,
      &(ad_phase){.size = sizeof(ad_phase), .name = "consume", .module = CONSUMER, .needs = hidden, .run = consume});
}

static void destroy_pools(void *own) {
  two_pools *p = own;
  for (int m = 0; m < MICROBATCHES_MAX; m++) free(p->x[m].data);
  ad_bridge_destroy(p->bridge);
  free(p);
}

/* Makes this rank's rows of every microbatch, and counts the consumer's rows. A row's numbers depend only on the row's
 * index in the global batch, so every mesh trains on the same data. */
static ad_status read_batch(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  two_pools *p = own;
  int64_t rank = ad_comm_rank(p->setting.comm), batch = p->setting.global_batch, parts = p->setting.microbatches;
  for (int64_t m = 0; m < parts; m++) {
    ad_span whole = ad_cut(batch, m, parts), mine = ad_batch_rows(&p->rows, rank, batch, parts, m);
    ad_layout there = batch_on(ad_bridge_to(p->bridge).mesh);
    free(p->x[m].data);
    p->x[m] = ad_array_describe(p->setting.comm, AD_F64, &(ad_shape){2, {whole.count, IN}}, &p->rows);
    p->x[m].data = calloc((size_t)mine.count * IN + 1, sizeof(double));
    if (!p->x[m].data) return AD_MEMORY;
    for (int64_t i = 0; i < mine.count * IN; i++)
      ((double *)p->x[m].data)[i] = sin((double)(step * batch * IN + mine.first * IN + i));
    counted[0][m] = ad_batch_rows(&there, rank, batch, parts, m).count;
  }
  return AD_OK;
}

/* Registers the program, runs the check in f64 with all mutants, and prints its report. */
static ad_status prove(void) {
  static const char *const modules[] = {"producer", "consumer", NULL};
  static const ad_program_kind kind = {.size = sizeof kind,
                                       .name = "two_pools",
                                       .help = "two matrices, on their own pools",
                                       .modules = modules,
                                       .create = create_pools,
                                       .destroy = destroy_pools,
                                       .read = read_batch};
  static const char *const wide[] = {"precision.compute=f64", "precision.param=f64"};
  ad_check_options options = {.size = sizeof options, .mutate = 1};
  ad_recipe *recipe;
  char *json = NULL, *table = NULL;
  int holds = 0;
  AD_TRY(ad_program_register(&kind));
  AD_TRY(ad_recipe_parse(recipe_text, "two_pools.yaml", wide, 2, &recipe));
  ad_status status = ad_check(recipe, &options, &holds, &json);
  if (!status) status = ad_check_list(json, AD_PLAIN_TEXT, &table);
  if (!status) fputs(table, stdout); /* the first and the last line of the report are the verdict */
  free(json);
  free(table);
  ad_recipe_destroy(recipe);
  return status ? status : holds ? AD_OK : AD_INVALID;
}

int main(void) {
  ad_status status = prove();
  if (status) fprintf(stderr, "two_pools: %s\n", ad_last_error());
  return status != AD_OK;
}
