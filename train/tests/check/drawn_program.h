/* Programs as users write them, for tests that draw right checks: a kind of program on public headers alone, whose key
 * model.form chooses what it computes. The names of the forms are the list of what is tried.
 *
 * It has two layers over tp, and beside them a scale and a head, which some forms use. Values are matrices
 * [rows, WIDTH]: rows are sharded over dp (S(0)), and on tp all ranks have the same (I). */
#ifndef TESTS_CHECK_DRAWN_PROGRAM_H
#define TESTS_CHECK_DRAWN_PROGRAM_H
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "addend/addend.h"
#include "addend/helpers.h"

#define DRAWN_FORMS(X)                                                                           \
  X(DIVIDED, "a loss that is divided by its count")                                              \
  X(GATHERED, "a contrastive loss over rows that are gathered over dp, one for each microbatch") \
  X(GATHERED_DIVIDED, "a contrastive loss over gathered rows, divided by its count")             \
  X(GATHERED_INVARIANT, "rows gathered to I, with which all ranks do the same work")             \
  X(BATCH_STATISTIC, "rows less their mean over all ranks, one loss for each microbatch")        \
  X(EXCHANGED, "rows that an all_to_all turns into columns")                                     \
  X(LOGARITHM, "the logarithm of a sum over all ranks, one for each microbatch")                 \
  X(TIED, "one matrix as embedding and as head")                                                 \
  X(UNUSED, "a parameter that nothing uses")                                                     \
  X(OPERATION, "a custom operation")                                                             \
  X(MASKED, "labels, of which some do not count")                                                \
  X(DROPOUT, "relu and dropout")                                                                 \
  X(WEIGHED, "several losses with coefficients and a metric")                                    \
  X(PHASES, "two phases of one module, the first of which gives a value")                        \
  X(ATTENTION, "attention inside each sample")                                                   \
  X(WIDENED, "rows that are widened before they are gathered")                                   \
  X(STOPPED, "a constant made of gathered rows: wrong, since no gradient goes through it")       \
  X(NOTHING, "a loss that is multiplied by 0: nothing is measured")
typedef enum drawn_form {
#define DRAWN_CODE(code, words) DRAWN_##code,
  DRAWN_FORMS(DRAWN_CODE)
#undef DRAWN_CODE
      DRAWN_COUNT,
  DRAWN_RIGHT = DRAWN_STOPPED /* forms before this one are right */
} drawn_form;

enum { DRAWN_WIDTH = 8, DRAWN_HIDDEN = 6, DRAWN_CLASSES = 5 };
enum { DRAWN_LAYERS = 4, DRAWN_SCALE = DRAWN_LAYERS, DRAWN_HEAD, DRAWN_PARAMS };
enum { DRAWN_X, DRAWN_Y, DRAWN_LABEL, DRAWN_PLACE, DRAWN_FIELDS };

typedef struct drawn_options {
  int64_t form;
} drawn_options;

typedef struct drawn_model {
  drawn_form form;
  int64_t rank;
  uint64_t seed;
  ad_linear_layer up, down;
  ad_batch_field fields[DRAWN_FIELDS];
  ad_batch *batch;
} drawn_model;

/* ---- a custom operation: softplus, elementwise ---- */

static inline ad_status drawn_softplus_forward(ad_tape *t, ad_tensor *out) {
  for (size_t i = 0; i < ad_array_numel(ad_tensor_array(out)); i++) {
    double x = ad_array_get(ad_operand(out, 0), i);
    ad_array_set(ad_tensor_array(out), i, fmax(x, 0) + log1p(exp(-fabs(x))));
  }
  return AD_OK;
}

static inline ad_status drawn_softplus_backward(ad_tape *t, ad_tensor *out, const ad_gradient_slot *slot) {
  for (size_t i = 0; i < ad_array_numel(ad_result_grad(out)); i++)
    ad_slot_put(&slot[0], i, ad_array_get(ad_result_grad(out), i) / (1 + exp(-ad_array_get(ad_operand(out, 0), i))));
  return AD_OK;
}

static const ad_operation drawn_softplus = {.size = sizeof drawn_softplus,
                                            .name = "softplus",
                                            .dims = "...->...",
                                            .linearity = AD_NONLINEAR,
                                            .forward = drawn_softplus_forward,
                                            .backward = drawn_softplus_backward,
                                            .fills = 1 << 0,
                                            .dtypes = AD_IN_ANY_FLOAT};

/* ---- what the forms compute ---- */

/* The tensors of one microbatch that forms begin with. */
typedef struct drawn_values {
  ad_tape *t;
  ad_tensor *x, *y, *labels, *places; /* [rows, WIDTH] twice, [rows] twice */
  ad_tensor *params[DRAWN_PARAMS], *scale, *head;
  ad_shape samples; /* [rows, 2, WIDTH / 2] */
} drawn_values;

static inline ad_tensor *drawn_hidden(const drawn_model *model, const drawn_values *v, ad_tensor *x, int relu) {
  const ad_parallel plain = {0};
  ad_tensor *h = ad_linear_forward(v->t, v->params, &model->up, ad_tp_enter(v->t, x, plain));
  h = relu ? ad_relu(v->t, h) : ad_gelu(v->t, h);
  return ad_tp_leave(v->t, ad_linear_forward(v->t, v->params, &model->down, h), plain);
}

static inline ad_tensor *drawn_squares(ad_tape *t, ad_tensor *x) { return ad_sum(t, ad_multiply(t, x, x)); }

/* Each row against all ranks' rows, its own place the right one; [rows, WIDTH] twice. */
static inline ad_tensor *drawn_contrast(const drawn_values *v, ad_tensor *h, ad_tensor *other, ad_type to) {
  ad_tensor *all = ad_all_gather(v->t, ad_rms_norm_unweighted(v->t, other, 1e-6), "dp", to);
  return ad_cross_entropy(v->t, ad_linear_transposed(v->t, ad_rms_norm(v->t, h, v->scale, 1e-6), all), v->places);
}

static inline ad_tensor *drawn_centred(ad_tape *t, ad_tensor *h) {
  ad_tensor *mean = ad_all_reduce(t, ad_mean_over(t, h, 0), "dp", AD_R);
  ad_tensor *centred = ad_add_row(t, ad_to_dtype(t, h, ad_dtype_wide(ad_tape_dtype(t))), ad_scale(t, mean, -1));
  return drawn_squares(t, ad_tanh(t, centred));
}

static inline ad_tensor *drawn_exchanged(ad_tape *t, ad_tensor *h) {
  ad_tensor *columns = ad_gelu(t, ad_all_to_all(t, h, "dp", AD_S(1)));
  return drawn_squares(t, ad_gelu(t, ad_all_to_all(t, columns, "dp", AD_S(0))));
}

static inline ad_tensor *drawn_logarithm(ad_tape *t, ad_tensor *h) {
  return ad_ln(t, ad_all_reduce(t, drawn_squares(t, h), "dp", AD_I));
}

static inline ad_tensor *drawn_attention(const drawn_values *v, ad_tensor *h) {
  ad_tensor *seen = ad_reshape(v->t, h, &v->samples);
  return drawn_squares(v->t, ad_attention(v->t, seen, seen, seen, DRAWN_WIDTH / 4));
}

/* Wrong: the gathered rows are made a constant, so that each rank's use of the others' rows leaves no gradient. */
static inline ad_tensor *drawn_stopped(const drawn_values *v, ad_tensor *h) {
  ad_tensor *all = ad_all_gather(v->t, ad_rms_norm_unweighted(v->t, h, 1e-6), "dp", AD_R);
  const ad_array *values = ad_tensor_array(all);
  ad_tensor *fixed = values ? ad_constant(v->t, values) : all;
  return ad_cross_entropy(v->t, ad_linear_transposed(v->t, ad_rms_norm(v->t, h, v->scale, 1e-6), fixed), v->places);
}

static inline ad_tensor *drawn_widened(const drawn_values *v, ad_tensor *h) {
  ad_tensor *wide = ad_to_dtype(v->t, h, ad_dtype_wide(ad_tape_dtype(v->t)));
  ad_tensor *all = ad_to_dtype(v->t, ad_all_gather(v->t, wide, "dp", AD_R), ad_tape_dtype(v->t));
  return ad_cross_entropy(v->t, ad_linear_transposed(v->t, h, all), v->places);
}

static inline ad_tensor *drawn_dropped(const drawn_model *model, ad_phase_run *at, const drawn_values *v) {
  ad_tensor *kept = ad_dropout(v->t, drawn_hidden(model, v, v->x, 1), 0.25, model->seed, "drop",
                               ad_batch_step(model->batch), ad_batch_first(model->batch, ad_phase_microbatch(at)));
  return drawn_squares(v->t, kept);
}

static inline ad_tensor *drawn_loss(const drawn_model *model, ad_phase_run *at, const drawn_values *v) {
  ad_tape *t = v->t;
  ad_tensor *h = model->form == DRAWN_DROPOUT ? NULL : drawn_hidden(model, v, v->x, 0), *all;
  switch (model->form) {
    case DRAWN_GATHERED:
    case DRAWN_GATHERED_DIVIDED:
      return drawn_contrast(v, h, drawn_hidden(model, v, v->y, 0), AD_R);
    case DRAWN_GATHERED_INVARIANT:
      all = ad_all_gather(t, h, "dp", AD_I);
      return ad_sum(t, ad_tanh(t, ad_mean_over(t, all, 0)));
    case DRAWN_BATCH_STATISTIC:
      return drawn_centred(t, h);
    case DRAWN_EXCHANGED:
      return drawn_exchanged(t, h);
    case DRAWN_LOGARITHM:
      return drawn_logarithm(t, h);
    case DRAWN_TIED:
      h = ad_linear(t, h, v->head);
      return drawn_squares(t, ad_linear_transposed(t, ad_gelu(t, h), v->head));
    case DRAWN_OPERATION: {
      ad_tensor *operands[] = {h};
      return ad_sum(t, ad_operation_apply(t, &drawn_softplus, operands, 1, NULL));
    }
    case DRAWN_MASKED:
      return ad_cross_entropy(t, ad_linear(t, h, v->head), v->labels);
    case DRAWN_DROPOUT:
      return drawn_dropped(model, at, v);
    case DRAWN_ATTENTION:
      return drawn_attention(v, h);
    case DRAWN_WIDENED:
      return drawn_widened(v, h);
    case DRAWN_STOPPED:
      return drawn_stopped(v, h);
    case DRAWN_NOTHING:
      return ad_scale(t, drawn_squares(t, h), 0);
    default:
      return ad_squared_error(t, h, v->y);
  }
}

/* `first`: 0, or the first parameter that the second of two phases uses. */
static inline drawn_values drawn_values_of(const drawn_model *model, ad_phase_run *at, size_t first) {
  size_t m = ad_phase_microbatch(at);
  ad_tape *t = ad_phase_tape(at);
  drawn_values v = {.t = t};
  v.x = ad_constant(t, ad_batch_array(model->batch, DRAWN_X, m));
  v.y = ad_constant(t, ad_batch_array(model->batch, DRAWN_Y, m));
  v.labels = ad_constant(t, ad_batch_array(model->batch, DRAWN_LABEL, m));
  v.places = ad_constant(t, ad_batch_array(model->batch, DRAWN_PLACE, m));
  for (size_t i = first; i < DRAWN_PARAMS; i++)
    if (model->form != DRAWN_PHASES || (i < DRAWN_LAYERS) == !first)
      v.params[i] = ad_parameter(t, ad_phase_parameters(at), i);
  v.scale = v.params[DRAWN_SCALE];
  v.head = v.params[DRAWN_HEAD];
  v.samples = (ad_shape){3, {ad_batch_array(model->batch, DRAWN_X, m)->shape.dim[0], 2, DRAWN_WIDTH / 2}};
  return v;
}

static inline ad_status drawn_run(void *own, ad_phase_run *at) {
  const drawn_model *model = own;
  drawn_values v = drawn_values_of(model, at, 0);
  if (model->form == DRAWN_PHASES) {
    ad_phase_give(at, "hidden", drawn_hidden(model, &v, v.x, 0));
    return AD_OK;
  }
  ad_phase_loss(at, 0, drawn_loss(model, at, &v));
  if (model->form != DRAWN_WEIGHED) return AD_OK;
  ad_tensor *h = ad_linear(v.t, v.x, v.head);
  ad_phase_loss(at, 1, drawn_logarithm(v.t, h));
  ad_phase_loss(at, 2, ad_sum(v.t, ad_constant(v.t, ad_batch_array(model->batch, DRAWN_Y, ad_phase_microbatch(at)))));
  return AD_OK;
}

static inline ad_status drawn_second(void *own, ad_phase_run *at) {
  drawn_values v = drawn_values_of(own, at, DRAWN_LAYERS);
  ad_tensor *logits = ad_linear(v.t, ad_gelu(v.t, ad_phase_need(at, "hidden")), v.head);
  ad_phase_loss(at, 0, ad_cross_entropy(v.t, logits, v.labels));
  return AD_OK;
}

/* ---- the record of `drawn` ---- */

/* Whether the form's loss is defined for each microbatch over all ranks. */
static inline int drawn_is_per_microbatch(drawn_form form) {
  return form == DRAWN_GATHERED || form == DRAWN_GATHERED_INVARIANT || form == DRAWN_BATCH_STATISTIC ||
         form == DRAWN_LOGARITHM || form == DRAWN_WIDENED;
}

static inline ad_status drawn_add_batch(drawn_model *model, ad_program *to, const ad_mesh *mesh) {
  ad_dtype compute = ad_program_setting_of(to)->compute;
  ad_layout rows = ad_layout_all(mesh, AD_R);
  ad_tp_type(&rows, AD_I);
  ad_layout counted = rows;
  ad_layout_set(&rows, AD_AXES_DP, AD_S(0));
  ad_layout_set(&counted, AD_AXES_DP, AD_P);
  model->fields[DRAWN_X] = (ad_batch_field){"x", compute, {1, {DRAWN_WIDTH}}};
  model->fields[DRAWN_Y] = (ad_batch_field){"y", compute, {1, {DRAWN_WIDTH}}};
  model->fields[DRAWN_LABEL] = (ad_batch_field){"label", AD_I32, {0}};
  model->fields[DRAWN_PLACE] = (ad_batch_field){"place", AD_I32, {0}};
  AD_TRY(ad_program_add_batch(to, &rows, model->fields, DRAWN_FIELDS, &model->batch));
  ad_count_spec count = {.size = sizeof count, .name = "rows", .layout = counted};
  return ad_program_add_count(to, &count);
}

static inline ad_status drawn_add_losses(const drawn_model *model, ad_program *to) {
  ad_loss_spec loss = {.size = sizeof loss, .name = "loss", .per_microbatch = drawn_is_per_microbatch(model->form)};
  ad_loss_spec size = {.size = sizeof size, .name = "size", .coefficient = 0.25, .per_microbatch = 1};
  ad_loss_spec metric = {.size = sizeof metric, .name = "metric", .is_metric = 1};
  AD_TRY(ad_program_add_loss(to, &loss));
  if (model->form != DRAWN_WEIGHED) return AD_OK;
  AD_TRY(ad_program_add_loss(to, &size));
  return ad_program_add_loss(to, &metric);
}

static inline ad_status drawn_add_phases(const drawn_model *model, ad_program *to) {
  static const char *const hidden[] = {"hidden", NULL};
  ad_phase first = {.size = sizeof first, .name = "first", .run = drawn_run};
  ad_phase second = {.size = sizeof second, .name = "second", .run = drawn_second, .needs = hidden};
  if (model->form != DRAWN_PHASES) return ad_program_add_phase(to, &first);
  first.gives = hidden;
  AD_TRY(ad_program_add_phase(to, &first));
  return ad_program_add_phase(to, &second);
}

static inline ad_status drawn_create(const void *given, ad_program *to, void **own) {
  drawn_model *model = calloc(1, sizeof *model);
  if (!model) return ad_fail(AD_MEMORY, "no memory");
  *own = model;
  model->form = (drawn_form)((const drawn_options *)given)->form;
  model->rank = ad_comm_rank(ad_program_setting_of(to)->comm);
  model->seed = ad_program_setting_of(to)->seed;
  ad_declarations list = ad_declarations_on(ad_program_mesh(to, 0));
  ad_linear_shape up = {DRAWN_WIDTH, DRAWN_HIDDEN, AD_SHARD_COLUMNS, 1, 0.4};
  ad_linear_shape down = {DRAWN_HIDDEN, DRAWN_WIDTH, AD_SHARD_ROWS, 1, 0.4};
  model->up = ad_linear_declare(&list, "layers", "up", &up);
  model->down = ad_linear_declare(&list, "layers", "down", &down);
  ad_layout same = ad_layout_all(ad_program_mesh(to, 0), AD_R);
  ad_tp_type(&same, AD_I);
  ad_param_spec scale = {.size = sizeof scale, .shape = {1, {DRAWN_WIDTH}}, .layout = same, .mean = 0.5};
  ad_param_spec head = {.size = sizeof head, .shape = {2, {DRAWN_WIDTH, DRAWN_CLASSES}}, .layout = same};
  head.deviation = 0.4;
  head.sharded = AD_AXES(AD_DP_SHARD);
  ad_declare_param(&list, "own", "scale", scale);
  ad_declare_param(&list, "own", "head", head);
  AD_TRY(ad_program_add_declared(to, "model", NULL, &list));
  AD_TRY(drawn_add_batch(model, to, ad_program_mesh(to, 0)));
  AD_TRY(drawn_add_losses(model, to));
  return drawn_add_phases(model, to);
}

static inline double drawn_number(const drawn_model *model, int64_t sample, int64_t k) {
  return ad_random_normal(model->seed + 11, (uint64_t)sample, (uint64_t)k);
}

static inline ad_status drawn_read_row(void *own, ad_batch_row *to) {
  const drawn_model *model = own;
  const ad_array *places = &to->fields[DRAWN_PLACE];
  ad_span mine[2];
  for (int64_t k = 0; k < DRAWN_WIDTH; k++) {
    size_t i = to->row * DRAWN_WIDTH + (size_t)k;
    ad_array_set(&to->fields[DRAWN_X], i, drawn_number(model, to->sample, k));
    ad_array_set(&to->fields[DRAWN_Y], i, drawn_number(model, to->sample, DRAWN_WIDTH + k));
  }
  if (model->form == DRAWN_MASKED && to->sample % 3 == 1) to->counts = 0;
  ad_array_set(&to->fields[DRAWN_LABEL], to->row, to->counts ? (double)(to->sample % DRAWN_CLASSES) : -1);
  ad_layout_spans(&places->layout, 0, places->shape.dim[0], model->rank, mine, 2);
  ad_array_set(places, to->row, to->counts ? (double)(mine[0].first + (int64_t)to->row) : -1);
  return AD_OK;
}

static inline ad_status drawn_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  ad_row_reader reader = {drawn_read_row, own};
  return ad_batch_read(((drawn_model *)own)->batch, step, validation, &reader, counted[0]);
}

static const ad_key drawn_keys[] = {
    {"model.form", AD_KEY_INTEGER, .offset = offsetof(drawn_options, form), .most = DRAWN_COUNT - 1}};

static const ad_program_kind drawn_kind = {.size = sizeof drawn_kind,
                                           .name = "drawn",
                                           .keys = drawn_keys,
                                           .key_count = 1,
                                           .options_size = sizeof(drawn_options),
                                           .create = drawn_create,
                                           .read = drawn_read};

#endif
