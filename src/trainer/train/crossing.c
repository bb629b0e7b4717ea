/* Posting and waiting for what goes between modules on ranks of their own. A rank that sends keeps what it sent on its
 * tape until it has arrived; one that receives has memory for each microbatch under way. */
#include "train/crossing.h"

#include "array/array.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "base/seams.h"
#include "train/run.h"

/* ---- who needs and gives what ---- */

static const ad_phase *phase_at(const ad_run *run, size_t p) { return ad_program_phase(run->program, p); }

static int gives(const ad_run *run, size_t p, const ad_crossing *c) {
  return ad_phase_lists(phase_at(run, p)->gives, c->spec->value);
}

static int needs(const ad_run *run, size_t p, const ad_crossing *c) {
  return phase_at(run, p)->module == c->spec->module && ad_phase_lists(phase_at(run, p)->needs, c->spec->value);
}

/* It goes back last: then all gradients of the value are there. */
static int is_first_to_need(const ad_run *run, size_t p, const ad_crossing *c) {
  for (size_t before = 0; before < p; before++)
    if (needs(run, before, c)) return 0;
  return needs(run, p, c);
}

static int is_source(const ad_crossing *c) { return ad_bridge_has_source(c->spec->bridge); }
static size_t slot_of(const ad_run *run, size_t m) { return m % run->under_way; }

/* ---- memory ---- */

static ad_shape shape_of(const ad_run *run, const ad_crossing *c, int64_t m) {
  ad_layout from = ad_bridge_from(c->spec->bridge);
  ad_shape shape = c->spec->shape;
  if (ad_layout_cut_axes(&from)) shape.dim[0] = ad_cut(shape.dim[0], m, run->recipe->train.microbatches).count;
  return shape;
}

static ad_dtype dtype_of(const ad_run *run, const ad_crossing *c, int backward) {
  return ad_crossing_dtype(c->spec, ad_run_compute_dtype(run), backward);
}

/* The value of microbatch m, or its gradient, as it lies on this rank's side of the bridge. */
static ad_array described(const ad_run *run, const ad_crossing *c, size_t m, int backward) {
  ad_layout layout = is_source(c) ? ad_bridge_from(c->spec->bridge) : ad_bridge_arrives(c->spec->bridge);
  ad_shape shape = shape_of(run, c, (int64_t)m);
  if (backward) layout = ad_layout_dual(&layout);
  return ad_array_describe(run->comm, dtype_of(run, c, backward), &shape, &layout);
}

/* A proof in f64 rounds nothing on the way. */
static ad_dtype wire_of(const ad_run *run, const ad_crossing *c, int backward) {
  ad_wire_passing at = {backward ? c->spec->gradient_wire : c->spec->wire, backward};
  if (!run->rounds_wires || at.dtype == dtype_of(run, c, backward)) return 0;
  ad_seam_pass(AD_SEAM_WIRE, &at);
  return at.dtype;
}

/* Memory for the largest microbatch, of this dtype. */
static ad_status take_buffer(const ad_run *run, ad_crossing *c, ad_dtype dtype, ad_array *out) {
  size_t bytes = 0;
  for (size_t m = 0; m < (size_t)run->recipe->train.microbatches; m++) {
    ad_array array = described(run, c, m, 0);
    array.dtype = dtype;
    bytes = ad_array_bytes(&array) > bytes ? ad_array_bytes(&array) : bytes;
  }
  c->bytes += bytes;
  return ad_comm_is_dry(run->comm) ? AD_OK : ad_comm_alloc(run->comm, bytes, &out->data);
}

static void describe(const ad_run *run, const ad_crossing *c, size_t m, int backward, ad_array *out) {
  void *data = out->data;
  *out = described(run, c, m, backward);
  out->data = data;
}

static ad_status create_one(const ad_run *run, ad_crossing *c) {
  ad_dtype wire = wire_of(run, c, 0), gradient_wire = wire_of(run, c, 1);
  AD_TRY(ad_new(run->under_way, &c->forward));
  AD_TRY(ad_new(run->under_way, &c->travels));
  AD_TRY(ad_new(run->under_way, &c->values));
  for (size_t slot = 0; slot < run->under_way; slot++) {
    if (wire) AD_TRY(take_buffer(run, c, wire, &c->travels[slot]));
    if (!is_source(c)) AD_TRY(take_buffer(run, c, dtype_of(run, c, 0), &c->values[slot]));
  }
  if (gradient_wire) AD_TRY(take_buffer(run, c, gradient_wire, &c->gradient_travels));
  return is_source(c) ? take_buffer(run, c, dtype_of(run, c, 1), &c->gradient) : AD_OK;
}

size_t ad_crossings_bytes(const ad_run *run) {
  size_t bytes = 0;
  for (size_t i = 0; i < run->crossing_count; i++) bytes += run->crossings[i].bytes;
  return bytes;
}

static int is_of_this_rank(const ad_crossing_spec *spec) {
  return ad_bridge_is_disjoint(spec->bridge) &&
         (ad_bridge_has_source(spec->bridge) || ad_bridge_has_destination(spec->bridge));
}

ad_status ad_crossings_create(ad_run *run) {
  size_t count = ad_program_crossing_count(run->program);
  AD_TRY(ad_new(count, &run->crossings));
  AD_TRY(ad_new(2 * count, &run->overflows));
  for (size_t i = 0; i < count; i++) {
    const ad_crossing_spec *spec = ad_program_crossing(run->program, i);
    if (!is_of_this_rank(spec)) continue;
    ad_crossing *c = &run->crossings[run->crossing_count++];
    *c = (ad_crossing){.spec = spec, .value = ad_program_find_value(run->program, spec->value)};
    AD_TRY(create_one(run, c));
  }
  return AD_OK;
}

void ad_crossings_destroy(ad_run *run) {
  for (size_t i = 0; i < run->crossing_count; i++) {
    ad_crossing *c = &run->crossings[i];
    for (size_t slot = 0; slot < run->under_way; slot++) {
      if (c->values) ad_comm_free(run->comm, c->values[slot].data);
      if (c->travels) ad_comm_free(run->comm, c->travels[slot].data);
    }
    ad_comm_free(run->comm, c->gradient.data);
    ad_comm_free(run->comm, c->gradient_travels.data);
    ad_release(c->travels);
    ad_release(c->values);
    ad_release(c->forward);
  }
  ad_release(run->crossings);
  ad_release(run->overflows);
}

/* ---- in another dtype on the way ---- */

/* `value` as it travels: itself where there is no other dtype. */
static ad_array on_wire(const ad_array *value, ad_array *travels, ad_dtype wire) {
  void *data = travels->data;
  if (!wire) return *value;
  *travels = *value;
  travels->dtype = wire;
  travels->data = data;
  return *travels;
}

static void cast(const ad_array *to, const ad_array *from) {
  if (to->data && to->data != from->data) ad_cast(to->data, to->dtype, from->data, from->dtype, ad_array_numel(to));
}

/* ---- seams ---- */

static void pass_seam(ad_seam seam, const ad_run *run, const ad_crossing *c, size_t m) {
  ad_crossing_passing passing = {.run = run, .crossing = c, .microbatch = m};
  passing.array = is_source(c) ? &c->gradient : &c->values[slot_of(run, m)];
  passing.given = run->microbatches[slot_of(run, m)].values[c->value].output;
  ad_seam_pass(seam, &passing);
}

/* ---- waiting ---- */

static ad_status wait(ad_run *run, ad_request *request, ad_trace_kind kind, size_t m) {
  if (!request->id) return AD_OK;
  ad_trace_begin(&run->trace, kind, (int64_t)m, 0);
  AD_TRY(ad_comm_wait(run->comm, request));
  ad_trace_end(&run->trace, kind, (int64_t)m);
  return AD_OK;
}

ad_status ad_crossings_wait_room(ad_run *run, size_t p, size_t m) {
  size_t ahead = run->lead[p] + 1;
  for (size_t i = 0; i < run->crossing_count; i++) {
    ad_crossing *c = &run->crossings[i];
    if (gives(run, p, c) && m >= ahead)
      AD_TRY(wait(run, &c->forward[slot_of(run, m - ahead)], AD_TRACE_SENT, m - ahead));
    if (needs(run, p, c)) AD_TRY(wait(run, &c->backward, AD_TRACE_SENT, m));
  }
  return AD_OK;
}

ad_status ad_crossings_wait_value(ad_run *run, size_t value, size_t m) {
  size_t slot = slot_of(run, m);
  for (size_t i = 0; i < run->crossing_count; i++) {
    ad_crossing *c = &run->crossings[i];
    if (c->value != value || is_source(c)) continue;
    AD_TRY(wait(run, &c->forward[slot], AD_TRACE_VALUE, m));
    if (wire_of(run, c, 0)) cast(&c->values[slot], &c->travels[slot]);
    pass_seam(AD_SEAM_ARRIVED, run, c, m);
  }
  return AD_OK;
}

static ad_status take_gradient(ad_run *run, ad_crossing *c, size_t m) {
  AD_TRY(wait(run, &c->backward, AD_TRACE_GRADIENT, m));
  if (wire_of(run, c, 1)) cast(&c->gradient, &c->gradient_travels);
  return AD_OK;
}

ad_status ad_crossings_wait_gradients(ad_run *run, size_t p, size_t m) {
  for (size_t i = 0; i < run->crossing_count; i++)
    if (gives(run, p, &run->crossings[i])) AD_TRY(take_gradient(run, &run->crossings[i], m));
  return AD_OK;
}

ad_status ad_crossings_settle(ad_run *run) {
  for (size_t i = 0; i < run->crossing_count; i++) {
    AD_TRY(wait(run, &run->crossings[i].backward, AD_TRACE_SENT, 0));
    for (size_t slot = 0; slot < run->under_way; slot++)
      AD_TRY(wait(run, &run->crossings[i].forward[slot], AD_TRACE_SENT, slot));
  }
  return AD_OK;
}

/* ---- posting ---- */

static ad_status post_value(ad_run *run, ad_crossing *c, size_t m) {
  size_t slot = slot_of(run, m);
  ad_passed_value *passed = &run->microbatches[slot].values[c->value];
  ad_request *request = &c->forward[slot];
  const ad_array *value = is_source(c) ? ad_tensor_array(passed->output) : &c->values[slot];
  AD_TRY(wait(run, request, AD_TRACE_SENT, m));
  if (!is_source(c)) describe(run, c, m, 0, &c->values[slot]);
  ad_array travels = on_wire(value, &c->travels[slot], wire_of(run, c, 0));
  if (is_source(c)) {
    cast(&travels, value);
    ad_wire_overflow_note(run, c->spec, 0, &travels, value);
    return ad_bridge_post_forward_at(c->spec->bridge, &travels, NULL, request, c->spec->value);
  }
  passed->arrived = value;
  return ad_bridge_post_forward_at(c->spec->bridge, NULL, &travels, request, c->spec->value);
}

ad_status ad_crossings_post_values(ad_run *run, size_t p, size_t m) {
  for (size_t i = 0; i < run->crossing_count; i++)
    if (gives(run, p, &run->crossings[i])) AD_TRY(post_value(run, &run->crossings[i], m));
  return AD_OK;
}

/* Law 6: of several phases that needed it the gradients are added before they go back. */
static ad_status add_gradients(const ad_run *run, const ad_crossing *c, size_t m, ad_array *sum) {
  const ad_passed_value *passed = &run->microbatches[slot_of(run, m)].values[c->value];
  int arrived = 0;
  AD_TRY(ad_passed_gradients(run->program, passed, sum, &arrived));
  if (arrived) return AD_OK;
  return ad_fail(AD_INVALID,
                 "`%s` came from other ranks, and no loss of microbatch %zu depends on it here; its "
                 "gradient is awaited there",
                 c->spec->value, m);
}

/* A phase that is ahead posts several gradients in a row at a step's end: each takes the memory of the one before. */
static ad_status post_gradient(ad_run *run, ad_crossing *c, size_t m) {
  ad_dtype wire = wire_of(run, c, 1);
  AD_TRY(wait(run, &c->backward, AD_TRACE_SENT, m));
  if (is_source(c)) {
    describe(run, c, m, 1, &c->gradient);
    ad_array travels = on_wire(&c->gradient, &c->gradient_travels, wire);
    return ad_bridge_post_backward_at(c->spec->bridge, NULL, &travels, &c->backward, c->spec->value);
  }
  ad_array sum;
  AD_TRY(add_gradients(run, c, m, &sum));
  ad_array travels = on_wire(&sum, &c->gradient_travels, wire);
  cast(&travels, &sum);
  ad_wire_overflow_note(run, c->spec, 1, &travels, &sum);
  return ad_bridge_post_backward_at(c->spec->bridge, &travels, NULL, &c->backward, c->spec->value);
}

ad_status ad_crossings_post_gradients(ad_run *run, size_t p, size_t m) {
  for (size_t i = run->crossing_count; i-- > 0;)
    if (!run->crossings[i].spec->one_way && is_first_to_need(run, p, &run->crossings[i]))
      AD_TRY(post_gradient(run, &run->crossings[i], m));
  return AD_OK;
}

ad_status ad_crossings_add_returned(const ad_run *run, size_t value, size_t m, ad_array *sum, int *arrived) {
  for (size_t i = 0; i < run->crossing_count; i++) {
    const ad_crossing *c = &run->crossings[i];
    if (c->value != value || !is_source(c) || c->spec->one_way) continue;
    pass_seam(AD_SEAM_RETURNED, run, c, m);
    AD_TRY(ad_gradient_joins(sum, &c->gradient, arrived));
  }
  return AD_OK;
}
