/* Adversarial sources: the states of the adversary's module, and the ascent steps that change them. */
#include "decompose/sources.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "addend/helpers.h"
#include "decompose/model.h"
#include "decompose/pieces.h"
#include "decoder/text_batch.h"

static const double beta1 = 0.9, beta2 = 0.999;

static int uses_adam(const ad_decompose_options *options) { return !strcmp(options->ascent_rule, "adam"); }
static int is_sigmoid(const ad_decompose_options *options) { return !strcmp(options->ascent_bounds, "sigmoid"); }
static int is_shared(const ad_decompose_options *options) { return !strcmp(options->ascent_scope, "batch"); }

/* ---- creating the sources, which are states ---- */

static size_t declare(ad_declarations *to, const char *path, const char *name, const ad_shape *shape,
                      const ad_layout *layout, double value) {
  ad_state_spec state = {.size = sizeof state, .dtype = AD_F64, .shape = *shape, .layout = *layout, .value = value};
  return ad_declare_state(to, path, name, state);
}

/* Declares one array of sources with the initial value 0.5, the middle of [0, 1], and the moments of Adam. */
static void declare_one(const ad_sources *sources, ad_declarations *to, const char *path, const ad_shape *shape,
                        const ad_layout *layout, ad_source *out) {
  out->value = declare(to, path, "value", shape, layout, is_sigmoid(sources->options) ? 0 : 0.5);
  if (!uses_adam(sources->options)) return;
  out->first = declare(to, path, "first_moment", shape, layout, 0);
  out->second = declare(to, path, "second_moment", shape, layout, 0);
}

static ad_layout layout_of(const ad_sources *sources, const ad_mesh *mesh) {
  ad_layout shared = ad_layout_all(mesh, AD_R);
  ad_layout_set(&shared, AD_AXES_DP, AD_I);
  return is_shared(sources->options) ? shared : ad_text_batch_layout(mesh);
}

static ad_shape for_samples(const ad_shape *shape, int64_t samples) {
  ad_shape full = {shape->ndim + 1, {samples}};
  memcpy(full.dim + 1, shape->dim, (size_t)shape->ndim * sizeof *shape->dim);
  return full;
}

ad_status ad_sources_create(ad_sources *sources, const ad_decompose_options *options, const ad_shape *shapes,
                            size_t count, const ad_program_setting *setting, ad_declarations *to) {
  *sources = (ad_sources){.options = options, .per_microbatch = count, .microbatches = (size_t)setting->microbatches};
  ad_layout layout = layout_of(sources, to->replicated.mesh);
  AD_TRY(ad_new(count * sources->microbatches, &sources->list));
  AD_TRY(ad_new(count * sources->microbatches, &sources->leaves));
  AD_TRY(ad_new(count, &sources->memory));
  for (size_t m = 0; m < sources->microbatches; m++) {
    int64_t samples = ad_cut(setting->global_batch, (int64_t)m, setting->microbatches).count;
    for (size_t i = 0; i < count; i++) {
      ad_shape shape = is_shared(options) ? shapes[i] : for_samples(&shapes[i], samples);
      char path[64];
      snprintf(path, sizeof path, "sources.%zu.%zu", m, i);
      declare_one(sources, to, path, &shape, &layout, &sources->list[m * count + i]);
    }
  }
  sources->steps_state =
      declare(to, "sources", "steps", &(ad_shape){1, {(int64_t)sources->microbatches}}, &to->replicated, 0);
  return to->status;
}

void ad_sources_release(ad_sources *sources) {
  for (size_t i = 0; sources->memory && i < sources->per_microbatch; i++) ad_release(sources->memory[i].at);
  ad_release(sources->memory);
  ad_release(sources->leaves);
  ad_release(sources->list);
}

static ad_source *source_of(const ad_sources *sources, const ad_phase_run *at, size_t i) {
  return &sources->list[ad_phase_microbatch(at) * sources->per_microbatch + i];
}

/* ---- sources on a tape ---- */

/* Allocates, at the first call, memory for the source of the largest microbatch, in f64. Also a rank without samples
 * gets memory, so that its pointer is not NULL. */
static ad_status take_memory(ad_sources *sources, ad_phase_run *at, size_t i) {
  ad_kept_memory *memory = &sources->memory[i];
  size_t most = 0;
  if (memory->bytes || memory->at) return AD_OK;
  for (size_t m = 0; m < sources->microbatches; m++) {
    size_t bytes = ad_array_bytes(ad_phase_state(at, sources->list[m * sources->per_microbatch + i].value));
    most = bytes > most ? bytes : most;
  }
  memory->bytes = most;
  return ad_comm_is_dry(ad_tape_comm(ad_phase_tape(at))) ? AD_OK : ad_new(most, &memory->at);
}

size_t ad_sources_bytes(const ad_sources *sources) {
  size_t bytes = 0;
  for (size_t i = 0; i < sources->per_microbatch; i++) bytes += sources->memory[i].bytes;
  return bytes;
}

static ad_tensor *leaf_of(ad_sources *sources, ad_phase_run *at, ad_tape *t, size_t i) {
  ad_array *state = ad_phase_state(at, source_of(sources, at, i)->value), seen = *state;
  seen.dtype = ad_dtype_wide(ad_tape_dtype(t));
  ad_status status = take_memory(sources, at, i);
  if (status) return ad_tape_fail(t, status);
  if (state->data) {
    seen.data = sources->memory[i].at;
    ad_cast(seen.data, seen.dtype, state->data, AD_F64, ad_array_numel(state));
  }
  return ad_input(t, &seen);
}

/* Enters source i on the tape as a value for each sample. A shared source is converted to R, because every rank uses it
 * for different samples: each rank then has an addend of its gradient, and the conversion's backward sums the
 * addends. */
ad_tensor *ad_sources_input(ad_sources *sources, ad_phase_run *at, ad_tape *t, size_t i, ad_tensor *tokens,
                            ad_tensor **leaf) {
  *leaf = leaf_of(sources, at, t, i);
  ad_tensor *source = is_sigmoid(sources->options) ? ad_sigmoid(t, *leaf) : *leaf;
  if (!is_shared(sources->options)) return source;
  return ad_repeat(t, ad_convert(t, source, "dp", AD_R), tokens);
}

ad_tensor **ad_sources_leaves(const ad_sources *sources, const ad_phase_run *at) {
  return &sources->leaves[ad_phase_microbatch(at) * sources->per_microbatch];
}

/* ---- gradient ascent of the sources ---- */

static void take_signs(double *gradient, size_t n) {
  for (size_t k = 0; k < n; k++) gradient[k] = gradient[k] > 0 ? 1 : gradient[k] < 0 ? -1 : 0;
}

/* The state of Adam (Kingma and Ba 2015), which here raises the loss instead of lowering it. */
typedef struct adam {
  double correct1, correct2, epsilon;
} adam;

static adam adam_at(const ad_decompose_options *options, double steps) {
  return (adam){1 - pow(beta1, steps), 1 - pow(beta2, steps), options->ascent_epsilon};
}

static void take_adam_steps(adam how, double *restrict first, double *restrict second, double *restrict gradient,
                            size_t n) {
  for (size_t k = 0; k < n; k++) {
    first[k] = beta1 * first[k] + (1 - beta1) * gradient[k];
    second[k] = beta2 * second[k] + (1 - beta2) * gradient[k] * gradient[k];
    gradient[k] = first[k] / how.correct1 / (sqrt(second[k] / how.correct2) + how.epsilon);
  }
}

static void rise(double *restrict value, const double *restrict step, double lr, int is_bounded, size_t n) {
  for (size_t k = 0; k < n; k++) value[k] += lr * step[k];
  for (size_t k = 0; is_bounded && k < n; k++) value[k] = value[k] < 0 ? 0 : value[k] > 1 ? 1 : value[k];
}

/* Reads n elements of the gradient, from element `first` on, and multiplies them by `factor`. */
static void take_gradients(const ad_array *gradient, size_t first, double factor, double *out, size_t n) {
  ad_piece_take(gradient, first, n, out);
  for (size_t k = 0; k < n; k++) out[k] *= factor;
}

void ad_ascend(const ad_decompose_options *options, const ad_heights *at, const ad_array *gradient, double factor,
               double steps) {
  adam how = adam_at(options, steps);
  double piece[PIECE];
  for (size_t k = 0, numel = ad_array_numel(gradient); k < numel; k += PIECE) {
    size_t n = ad_piece_size(k, numel);
    take_gradients(gradient, k, factor, piece, n);
    if (at->first)
      take_adam_steps(how, at->first + k, at->second + k, piece, n);
    else
      take_signs(piece, n);
    rise(at->value + k, piece, options->ascent_lr, !is_sigmoid(options), n);
  }
}

/* Returns the possible error of one step of Adam if gradients may be off by `error`. The step is x = first / correct1 /
 * r with r = sqrt(second / correct2) + epsilon. first / correct1 and r are means of gradients, each off by at most
 * `error`, so x is off by at most (1 + |x|) error / r. */
static double adam_slack(adam how, double first, double second, double error) {
  double root = sqrt(second / how.correct2) + how.epsilon;
  return (1 + fabs(first / how.correct1 / root)) * error / root;
}

void ad_ascent_slack(const ad_decompose_options *options, const ad_heights *at, const ad_array *gradient, double factor,
                     double steps, double error, double *slack) {
  adam how = adam_at(options, steps);
  error *= fabs(factor);
  double piece[PIECE];
  for (size_t k = 0, numel = ad_array_numel(gradient); k < numel; k += PIECE) {
    size_t n = ad_piece_size(k, numel);
    take_gradients(gradient, k, factor, piece, n);
    for (size_t j = 0; j < n; j++) {
      double flipped = fabs(piece[j]) <= error ? 2 : 0; /* an error of this size may flip the sign */
      slack[k + j] +=
          options->ascent_lr * (at->first ? adam_slack(how, at->first[k + j], at->second[k + j], error) : flipped);
    }
  }
}

static ad_heights heights_of(const ad_sources *sources, ad_phase_run *at, size_t i) {
  const ad_source *source = source_of(sources, at, i);
  ad_heights heights = {.value = ad_phase_state(at, source->value)->data};
  if (!uses_adam(sources->options)) return heights;
  heights.first = ad_phase_state(at, source->first)->data;
  heights.second = ad_phase_state(at, source->second)->data;
  return heights;
}

/* One ascent step of the sources of the phase's microbatch. */
typedef struct climb {
  const ad_sources *sources;
  double factor, steps;
} climb;

static void climb_one(const void *own, ad_phase_run *at, const ad_state_change *change, size_t i) {
  const climb *c = own;
  ad_heights heights = heights_of(c->sources, at, i);
  ad_ascend(c->sources->options, &heights, change->gradient, c->factor, c->steps);
}

static void add_slack(const void *own, ad_phase_run *at, const ad_state_change *change, size_t i, double error,
                      double *off) {
  const climb *c = own;
  ad_heights heights = heights_of(c->sources, at, i);
  ad_ascent_slack(c->sources->options, &heights, change->gradient, c->factor, c->steps, error, off);
}

static ad_status climb_all(const climb *c, ad_phase_run *at, const ad_array *const *gradients, ad_state_change *list) {
  ad_state_rule rule = {.size = sizeof rule, .change = climb_one, .off = add_slack, .own = c};
  size_t count = c->sources->per_microbatch;
  for (size_t i = 0; i < count; i++) list[i] = (ad_state_change){source_of(c->sources, at, i)->value, gradients[i]};
  return ad_phase_change_states(at, &rule, list, count);
}

ad_status ad_sources_climb(ad_sources *sources, ad_phase_run *at, const ad_array *const *gradients, double factor) {
  double *steps = ad_phase_state(at, sources->steps_state)->data;
  ad_state_change *list;
  if (!steps) return AD_OK;
  climb c = {sources, factor, ++steps[ad_phase_microbatch(at)]};
  AD_TRY(ad_new(sources->per_microbatch, &list));
  ad_status status = climb_all(&c, at, gradients, list);
  ad_release(list);
  return status;
}
