/* A program for runs with train.leaves (leaves_worlds.sh): labels of which some do not count, a matrix with gradients in
 * every third leaf only, and one that nothing uses; with ZeRO 3 each parameter is gathered by itself. */
#include <stdlib.h>
#include "addend/addend.h"
#include "addend/helpers.h"

enum { WIDTH = 7, HIDDEN = 10, CLASSES = 5 };
enum { IN, BIAS, RARE, OUT, UNUSED, PARAMS };
enum { X, LABEL };

typedef struct model {
  ad_batch_field fields[2];
  ad_batch *batch;
} model;

static ad_status run(void *own, ad_phase_run *at) {
  const model *of = own;
  ad_tape *t = ad_phase_tape(at);
  size_t m = ad_phase_microbatch(at);
  const ad_parameters *params = ad_phase_parameters(at);
  ad_tensor *x = ad_constant(t, ad_batch_array(of->batch, X, m));
  ad_tensor *labels = ad_constant(t, ad_batch_array(of->batch, LABEL, m));
  ad_tensor *h = ad_add_row(t, ad_linear(t, x, ad_parameter(t, params, IN)), ad_parameter(t, params, BIAS));
  if (m % 3 == 1) h = ad_linear(t, ad_tanh(t, h), ad_parameter(t, params, RARE));
  ad_phase_loss(at, 0, ad_cross_entropy(t, ad_linear(t, ad_gelu(t, h), ad_parameter(t, params, OUT)), labels));
  return AD_OK;
}

/* Vectors are full on every rank, whatever the ZeRO stage. */
static void declare(ad_declarations *to, const char *name, ad_shape shape) {
  to->unit++;
  ad_declare_param(to, "layers", name,
                   (ad_param_spec){.size = sizeof(ad_param_spec),
                                   .shape = shape,
                                   .layout = to->replicated,
                                   .sharded = shape.ndim == 2 ? AD_AXES(AD_DP_SHARD) : 0,
                                   .decays = shape.ndim == 2,
                                   .deviation = 0.4});
}

static ad_status create(const void *options, ad_program *to, void **own) {
  model *of = calloc(1, sizeof *of);
  if (!of) return ad_fail(AD_MEMORY, "no memory");
  *own = of;
  ad_declarations list = ad_declarations_on(ad_program_mesh(to, 0));
  ad_layout rows = list.replicated, counted = rows;
  ad_layout_set(&rows, AD_AXES_DP, AD_S(0));
  ad_layout_set(&counted, AD_AXES_DP, AD_P);
  declare(&list, "in", (ad_shape){2, {WIDTH, HIDDEN}});
  declare(&list, "bias", (ad_shape){1, {HIDDEN}});
  declare(&list, "rare", (ad_shape){2, {HIDDEN, HIDDEN}});
  declare(&list, "out", (ad_shape){2, {HIDDEN, CLASSES}});
  declare(&list, "unused", (ad_shape){2, {3, 2}});
  AD_TRY(ad_program_add_declared(to, "model", NULL, &list));
  of->fields[X] = (ad_batch_field){"x", ad_program_setting_of(to)->compute, {1, {WIDTH}}};
  of->fields[LABEL] = (ad_batch_field){"label", AD_I32, {0}};
  AD_TRY(ad_program_add_batch(to, &rows, of->fields, 2, &of->batch));
  ad_count_spec count = {.size = sizeof count, .name = "labels", .layout = counted};
  ad_loss_spec loss = {.size = sizeof loss, .name = "loss"};
  ad_phase phase = {.size = sizeof phase, .name = "layers", .run = run};
  AD_TRY(ad_program_add_count(to, &count));
  AD_TRY(ad_program_add_loss(to, &loss));
  return ad_program_add_phase(to, &phase);
}

/* Samples 4 to 7 of each ten do not count, nor do some others. */
static ad_status read_row(void *own, ad_batch_row *to) {
  uint64_t stream = ad_random_stream(to->validation ? "validation" : "training"), sample = (uint64_t)to->sample;
  for (uint64_t k = 0; k < WIDTH; k++)
    ad_array_set(&to->fields[X], to->row * WIDTH + k, ad_random_normal(5, stream, sample * WIDTH + k));
  if (sample % 10 / 4 == 1 || sample % 7 == 2) to->counts = 0;
  ad_array_set(&to->fields[LABEL], to->row, to->counts ? (double)(sample % CLASSES) : -1);
  return AD_OK;
}

static ad_status read_batch(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  ad_row_reader reader = {read_row, own};
  return ad_batch_read(((model *)own)->batch, step, validation, &reader, counted[0]);
}

static int has_validation(const void *own) { return 1; }
static int64_t validation_samples(const void *own) { return 24; }

static const ad_program_kind kind = {
    .size = sizeof kind,
    .name = "leaves_custom",
    .create = create,
    .read = read_batch,
    .data = {.has_validation = has_validation, .validation_samples = validation_samples}};
static const ad_program_kind *const kinds[] = {&kind, NULL};
AD_PROGRAM_OBJECT(kinds);
