/* Sources as states of a module, and their ascent. */
#include "program/sources.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "base/kernels.h"
#include "base/memory.h"
#include "tensor/rows.h"

static const double beta1 = 0.9, beta2 = 0.999;

static int uses_adam(const ad_sources *sources) { return !strcmp(sources->options->ascent_rule, "adam"); }

/* ---- states ---- */

static size_t declare(ad_declarations *to, const char *path, const char *name, const ad_shape *shape,
                      const ad_layout *layout, double value) {
  ad_state_spec state = {.dtype = AD_F64, .shape = *shape, .layout = *layout, .value = value};
  return ad_declare_state(to, path, name, state);
}

static void declare_one(const ad_sources *sources, ad_declarations *to, const char *path, const ad_shape *shape,
                        const ad_layout *layout, ad_source *out) {
  out->value = declare(to, path, "value", shape, layout, 0.5);
  if (!uses_adam(sources)) return;
  out->first = declare(to, path, "first_moment", shape, layout, 0);
  out->second = declare(to, path, "second_moment", shape, layout, 0);
}

ad_status ad_sources_create(ad_sources *sources, const ad_decompose_options *options, const ad_shape *shapes,
                            size_t count, const ad_program_setting *setting, const ad_layout *layout,
                            ad_declarations *to) {
  *sources = (ad_sources){.options = options, .per_microbatch = count, .microbatches = (size_t)setting->microbatches};
  ad_layout same = ad_layout_all(layout->mesh, AD_R);
  AD_TRY(ad_new(count * sources->microbatches, &sources->list));
  AD_TRY(ad_new(count * sources->microbatches, &sources->leaves));
  AD_TRY(ad_new(count, &sources->memory));
  for (size_t m = 0; m < sources->microbatches; m++) {
    for (size_t i = 0; i < count; i++) {
      ad_shape shape = shapes[i];
      char path[64];
      shape.dim[0] = ad_cut(setting->global_batch, (int64_t)m, setting->microbatches).count;
      snprintf(path, sizeof path, "sources.%zu.%zu", m, i);
      declare_one(sources, to, path, &shape, layout, &sources->list[m * count + i]);
    }
  }
  sources->steps_state = declare(to, "sources", "steps", &(ad_shape){1, {(int64_t)sources->microbatches}}, &same, 0);
  return to->status;
}

void ad_sources_release(ad_sources *sources) {
  for (size_t i = 0; sources->memory && i < sources->per_microbatch; i++) ad_release(sources->memory[i]);
  ad_release(sources->memory);
  ad_release(sources->leaves);
  ad_release(sources->list);
}

static ad_source *source_of(const ad_sources *sources, const ad_phase_run *at, size_t i) {
  return &sources->list[ad_phase_microbatch(at) * sources->per_microbatch + i];
}

/* ---- on a tape ---- */

/* Room for the largest microbatch in f64. */
static ad_status take_memory(ad_sources *sources, ad_phase_run *at, size_t i) {
  size_t most = 0;
  char *memory;
  if (sources->memory[i]) return AD_OK;
  for (size_t m = 0; m < sources->microbatches; m++) {
    size_t bytes = ad_array_bytes(ad_phase_state(at, sources->list[m * sources->per_microbatch + i].value));
    most = bytes > most ? bytes : most;
  }
  AD_TRY(ad_new(most, &memory));
  sources->memory[i] = memory;
  return AD_OK;
}

ad_tensor *ad_sources_input(ad_sources *sources, ad_phase_run *at, ad_tape *t, size_t i) {
  ad_array *state = ad_phase_state(at, source_of(sources, at, i)->value), seen = *state;
  seen.dtype = ad_tape_dtype(t);
  if (state->data) {
    ad_status status = take_memory(sources, at, i);
    if (status) return ad_input(t, NULL);
    seen.data = sources->memory[i];
    ad_cast(seen.data, seen.dtype, state->data, AD_F64, ad_array_numel(state));
  }
  ad_tensor *leaf = ad_input(t, &seen);
  if (t == ad_phase_tape(at)) sources->leaves[ad_phase_microbatch(at) * sources->per_microbatch + i] = leaf;
  return leaf;
}

/* ---- the ascent ---- */

static double clamped(double x) { return x < 0 ? 0 : x > 1 ? 1 : x; }

static double slope_of(double g) { return g > 0 ? 1 : g < 0 ? -1 : 0; }

static void climb_by_sign(double *value, const ad_array *gradient, size_t numel, double factor, double lr) {
  for (size_t k = 0; k < numel; k++)
    value[k] = clamped(value[k] + lr * slope_of(factor * ad_element(gradient->dtype, gradient->data, k)));
}

/* Kingma and Ba 2015, upwards. */
static void climb_by_adam(const ad_sources *sources, ad_phase_run *at, const ad_source *source,
                          const ad_array *gradient, double factor, double steps) {
  double *value = ad_phase_state(at, source->value)->data, *first = ad_phase_state(at, source->first)->data;
  double *second = ad_phase_state(at, source->second)->data;
  double correct1 = 1 - pow(beta1, steps), correct2 = 1 - pow(beta2, steps);
  for (size_t k = 0; k < ad_array_numel(gradient); k++) {
    double g = factor * ad_element(gradient->dtype, gradient->data, k);
    first[k] = beta1 * first[k] + (1 - beta1) * g;
    second[k] = beta2 * second[k] + (1 - beta2) * g * g;
    double size = sqrt(second[k] / correct2) + sources->options->ascent_epsilon;
    value[k] = clamped(value[k] + sources->options->ascent_lr * (first[k] / correct1) / size);
  }
}

ad_status ad_sources_climb(ad_sources *sources, ad_phase_run *at, const ad_array *const *gradients, double factor) {
  double *steps = ad_phase_state(at, sources->steps_state)->data;
  if (!steps) return AD_OK;
  double taken = ++steps[ad_phase_microbatch(at)];
  for (size_t i = 0; i < sources->per_microbatch; i++) {
    const ad_source *source = source_of(sources, at, i);
    if (!gradients[i]) return ad_fail(AD_INVALID, "no gradient reached the sources");
    if (uses_adam(sources))
      climb_by_adam(sources, at, source, gradients[i], factor, taken);
    else
      climb_by_sign(ad_phase_state(at, source->value)->data, gradients[i], ad_array_numel(gradients[i]), factor,
                    sources->options->ascent_lr);
  }
  return AD_OK;
}
