/* An MLP-Mixer (Tolstikhin et al. 2021) written with the operations of tensor.h alone: no layer of layers.h. For each
 * of three tones it predicts whether a picture of patches contains the tone. It shows dropout, transposed dimensions,
 * pooling, a learned temperature, and a binary cross-entropy. The samples are computed from their indices.
 *
 *   example_mixer check train/examples/mixer.yaml --mutate */
#include <math.h>
#include <stdlib.h>
#include "addend/addend.h"
#include "addend/helpers.h"

enum { PATCHES = 6, WIDTH = 8, LABELS = 3, FEATURES = 2 * WIDTH + PATCHES + PATCHES * WIDTH / 2 };

typedef struct settings {
  int64_t hidden;
  double dropout;
} settings;

typedef struct mixer {
  const settings *options;
  ad_batch_field fields[2];
  ad_batch *batch;
} mixer;
enum { X, Y };

/* The parameters, in the order of their declaration. */
enum { NORM, NORM_BIAS, TOKENS_IN, TOKENS_BIAS, TOKENS_OUT, GATE, HEAD, TEMPERATURE, PARAMS };

/* ---- the model ---- */

typedef struct pass {
  const mixer *model;
  ad_phase_run *at;
  ad_tape *t;
  ad_tensor *params[PARAMS];
} pass;

/* Drops elements, in training only. Which elements are dropped depends on the indices of the samples, so it is the same
 * on every mesh. */
static ad_tensor *drop(const pass *p, ad_tensor *x) {
  const ad_batch *batch = p->model->batch;
  if (ad_batch_split(batch) == AD_VALIDATION_SET) return x;
  return ad_dropout(p->t, x, p->model->options->dropout, 11, "tokens", ad_batch_step(batch),
                    ad_batch_first(batch, ad_phase_microbatch(p->at)));
}

/* Mixes patches: a dense layer along dimension 1. x [n, patches, width] -> the same shape. */
static ad_tensor *mix_patches(const pass *p, ad_tensor *x) {
  ad_tape *t = p->t;
  ad_tensor *normed = ad_layer_norm(t, x, p->params[NORM], p->params[NORM_BIAS], 1e-5);
  ad_tensor *h = ad_linear(t, ad_transpose(t, normed, 1, 2), p->params[TOKENS_IN]);  // [n, width, hidden]
  h = drop(p, ad_relu(t, ad_add_row(t, h, p->params[TOKENS_BIAS])));
  return ad_add(t, x, ad_transpose(t, ad_linear(t, h, p->params[TOKENS_OUT]), 1, 2));
}

/* Multiplies one half of the columns by the other half: [n, patches, width] -> [n, patches * width / 2]. */
static ad_tensor *gate(const pass *p, ad_tensor *x) {
  ad_tape *t = p->t;
  ad_tensor *y = ad_linear(t, x, p->params[GATE]);
  ad_tensor *half =
      ad_multiply(t, ad_tanh(t, ad_slice(t, y, -1, 0, WIDTH / 2)), ad_slice(t, y, -1, WIDTH / 2, WIDTH / 2));
  ad_shape flat = {2, {ad_tensor_array(half) ? ad_tensor_array(half)->shape.dim[0] : 0, PATCHES * WIDTH / 2}};
  return ad_reshape(t, half, &flat);
}

/* Pools over patches: the mean and the maximum of each column, and the root mean square of each patch. */
static ad_tensor *pool(const pass *p, ad_tensor *x) {
  ad_tape *t = p->t;
  ad_tensor *power = ad_scale(t, ad_sum_over(t, ad_multiply(t, x, x), 2), 1.0 / WIDTH);  // [n, patches]
  ad_tensor *parts[] = {ad_mean_over(t, x, 1), ad_max_over(t, x, 1), ad_sqrt(t, power), gate(p, x)};
  return ad_concat(t, parts, 4, -1);  // [n, FEATURES]
}

/* Divides each row by its norm, as exp(-ln(norm)), and multiplies by the learned temperature exp(w). */
static ad_tensor *logits_of(const pass *p, ad_tensor *pooled) {
  ad_tape *t = p->t;
  ad_tensor *factors = ad_exp(t, ad_scale(t, ad_ln(t, ad_norm_over(t, pooled, 1)), -1));
  ad_tensor *logits = ad_linear(t, ad_scale_rows(t, pooled, factors), p->params[HEAD]);
  return ad_scale_by(t, logits, ad_exp(t, p->params[TEMPERATURE]));
}

static ad_status run_phase(void *own, ad_phase_run *at) {
  pass p = {.model = (const mixer *)own, .at = at, .t = ad_phase_tape(at)};
  size_t m = ad_phase_microbatch(at);
  for (size_t i = 0; i < PARAMS; i++) p.params[i] = ad_parameter(p.t, ad_phase_parameters(at), i);
  ad_tensor *x = ad_constant(p.t, ad_batch_array(p.model->batch, X, m));
  ad_tensor *y = ad_constant(p.t, ad_batch_array(p.model->batch, Y, m));
  ad_phase_loss(at, 0, ad_binary_cross_entropy(p.t, logits_of(&p, pool(&p, mix_patches(&p, x))), y));
  return AD_OK;
}

/* ---- parameters and data ---- */

static void declare(ad_declarations *to, const char *name, ad_shape shape, double mean) {
  double deviation = shape.ndim == 2 ? ad_deviation_keeping_size(shape.dim[0]) : 0.1;
  ad_declare_param(to, "mixer", name,
                   (ad_param_spec){.size = sizeof(ad_param_spec),
                                   .shape = shape,
                                   .layout = to->replicated,
                                   .sharded = AD_AXES(AD_DP_SHARD),
                                   .decays = shape.ndim == 2,
                                   .mean = mean,
                                   .deviation = deviation});
}

static void declare_all(ad_declarations *to, int64_t hidden) {
  declare(to, "norm", (ad_shape){1, {WIDTH}}, 1);
  declare(to, "norm_bias", (ad_shape){1, {WIDTH}}, 0);
  declare(to, "tokens_in", (ad_shape){2, {PATCHES, hidden}}, 0);
  declare(to, "tokens_bias", (ad_shape){1, {hidden}}, 0);
  declare(to, "tokens_out", (ad_shape){2, {hidden, PATCHES}}, 0);
  declare(to, "gate", (ad_shape){2, {WIDTH, WIDTH}}, 0);
  declare(to, "head", (ad_shape){2, {FEATURES, LABELS}}, 0);
  declare(to, "temperature", (ad_shape){1, {1}}, 1);
}

static ad_status create_mixer(const void *given, ad_program *to, void **own) {
  mixer *model = (mixer *)calloc(1, sizeof *model);
  if (!model) return ad_fail(AD_MEMORY, "no memory for the mixer");
  *own = model;
  model->options = (const settings *)given;
  ad_declarations list = ad_declarations_on(ad_program_mesh(to, 0));
  declare_all(&list, model->options->hidden);
  ad_layout rows = list.replicated, counted = rows;
  ad_layout_set(&rows, AD_AXES_DP, AD_S(0));
  ad_layout_set(&counted, AD_AXES_DP, AD_P);
  AD_TRY(ad_program_add_declared(to, "model", NULL, &list));
  model->fields[X] = (ad_batch_field){"x", ad_program_setting_of(to)->compute, {2, {PATCHES, WIDTH}}};
  model->fields[Y] = (ad_batch_field){"y", ad_program_setting_of(to)->compute, {1, {LABELS}}};
  AD_TRY(ad_program_add_batch(to, &rows, model->fields, 2, &model->batch));
  ad_count_spec count = {.size = sizeof count, .name = "rows", .layout = counted};
  ad_loss_spec loss = {.size = sizeof loss, .name = "loss"};
  ad_phase phase = {.size = sizeof phase, .name = "model", .run = run_phase};
  AD_TRY(ad_program_add_count(to, &count));
  AD_TRY(ad_program_add_loss(to, &loss));
  return ad_program_add_phase(to, &phase);
}

/* Computes a sample: it contains each of three tones with probability 1/2, and noise. Targets are 0.95 and 0.05, so
 * that they are strictly between 0 and 1. */
static ad_status read_row(void *own, ad_batch_row *to) {
  uint64_t stream = ad_random_stream(to->validation ? "validation tones" : "tones"), sample = (uint64_t)to->sample;
  int has[LABELS];
  for (int k = 0; k < LABELS; k++) {
    has[k] = ad_random_uniform(3, stream, sample * LABELS + (uint64_t)k) < 0.5;
    ad_array_set(&to->fields[Y], to->row * LABELS + (size_t)k, has[k] ? 0.95 : 0.05);
  }
  for (size_t i = 0; i < PATCHES * WIDTH; i++) {
    double value = 0.3 * ad_random_normal(3, stream + 1, sample * PATCHES * WIDTH + i);
    for (int k = 0; k < LABELS; k++) value += has[k] * sin((k + 1) * 0.7 * (double)(i + 1));
    ad_array_set(&to->fields[X], to->row * PATCHES * WIDTH + i, value);
  }
  return AD_OK;
}

static ad_status read_batch(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  ad_row_reader reader = {read_row, own};
  return ad_batch_read(((mixer *)own)->batch, step, validation, &reader, counted[0]);
}

static int has_validation(const void *own) { return 1; }
static int64_t validation_samples(const void *own) { return 64; }

/* ---- the record that describes this program to addend ---- */

static const ad_key keys[] = {
    AD_INTEGER_KEY("model.hidden", settings, hidden, 1, 4096, "16", "width of the layer that mixes patches"),
    AD_NUMBER_KEY("model.dropout", settings, dropout, 0, 0.99, "0.1", "share of elements that are dropped")};

static const ad_program_kind kind = {
    .size = sizeof kind,
    .name = "mixer",
    .help = "an MLP-Mixer that says which tones a picture has",
    .keys = keys,
    .key_count = 2,
    .options_size = sizeof(settings),
    .create = create_mixer,
    .destroy = free,
    .read = read_batch,
    .data = {.has_validation = has_validation, .validation_samples = validation_samples}};

static const ad_program_kind *const kinds[] = {&kind, NULL};
int main(int argc, char **argv) { return ad_main(argc, argv, kinds); }
