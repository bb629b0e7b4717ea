/* Transfers values and their gradients between modules on different ranks. A sending rank keeps the value on its tape
 * until it is sent. A receiving rank has memory for each microbatch in flight. */
#include "step/transfers.h"

#include "array/array.h"
#include "base/clock.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "base/injection.h"
#include "bridge/bridge.h"
#include "program/program.h"
#include "step/run.h"

/* ---- which phases give a transfer's value and which need it ---- */

static const ad_phase *phase_at(const ad_run *run, size_t p) { return ad_program_phase(run->program, p); }

static int gives(const ad_run *run, size_t p, const ad_value_transfer *c) {
  return ad_phase_lists(phase_at(run, p)->gives, c->spec->value);
}

static int needs(const ad_run *run, size_t p, const ad_value_transfer *c) {
  return phase_at(run, p)->module == c->spec->module && ad_phase_lists(phase_at(run, p)->needs, c->spec->value);
}

/* Returns 1 if the transfer goes from phase `from` to phase `to`: `from` gives the value, and `to` is the first phase
 * of its module that needs it. (Later phases of the module use the value that `to` received.) */
static int joins(const ad_run *run, const ad_value_transfer *c, size_t from, size_t to) {
  return gives(run, from, c) && to == ad_order_first_to_need(run->program, c->value, c->spec->module);
}

static int is_source(const ad_value_transfer *c) { return ad_bridge_has_source(c->spec->bridge); }
static size_t slot_of(const ad_transfer_way *way, size_t m) { return m % way->count; }

/* ---- communication dtypes: a value, or its gradient, in the dtype in which it is sent ---- */

void ad_run_round_transfers(ad_run *run, int rounds) { run->transfers.rounds = rounds; }
int ad_run_rounds_transfers(const ad_run *run) { return run->transfers.rounds; }
void ad_run_scale_transfers(ad_run *run, int exponent) { run->transfers.scale = exponent; }

/* ---- buffers of a transfer ---- */

static ad_shape shape_of(const ad_run *run, const ad_value_transfer *c, int64_t m) {
  ad_shape shape = c->spec->shape;
  if (ad_transfer_is_split(c->spec)) shape.dim[0] = ad_cut(shape.dim[0], m, run->recipe->train.microbatches).count;
  return shape;
}

static ad_dtype dtype_of(const ad_run *run, const ad_value_transfer *c, int backward) {
  return ad_transfer_dtype(run->program, c->spec, backward);
}

/* Describes the value of microbatch m, or its gradient, on this rank's side of the bridge. */
static ad_array described(const ad_run *run, const ad_value_transfer *c, size_t m, int backward) {
  ad_layout layout = is_source(c) ? ad_bridge_from(c->spec->bridge) : ad_bridge_arrives(c->spec->bridge);
  ad_shape shape = shape_of(run, c, (int64_t)m);
  if (backward) layout = ad_layout_dual(&layout);
  return ad_array_describe(run->comm, dtype_of(run, c, backward), &shape, &layout);
}

/* Returns the communication dtype of the value if it differs from the value's own dtype, else 0. A check in f64 rounds
 * nothing. */
static ad_dtype comm_dtype_of(const ad_run *run, const ad_value_transfer *c, int backward) {
  ad_comm_dtype_passing at = {backward ? c->spec->gradient_comm_dtype : c->spec->comm_dtype, backward};
  if (!run->transfers.rounds || at.dtype == dtype_of(run, c, backward)) return 0;
  ad_inject(AD_INJECT_COMM_DTYPE, &at);
  return at.dtype;
}

/* Returns the elements of the largest microbatch on this rank. */
static size_t most_elements(const ad_run *run, const ad_value_transfer *c) {
  size_t most = 0;
  for (size_t m = 0; m < (size_t)run->recipe->train.microbatches; m++) {
    ad_array array = described(run, c, m, 0);
    most = ad_array_numel(&array) > most ? ad_array_numel(&array) : most;
  }
  return most;
}

/* Allocates a buffer of `elements` elements. */
static ad_status take_buffer(const ad_run *run, ad_value_transfer *c, size_t elements, ad_dtype dtype, ad_array *out) {
  size_t bytes = elements * ad_dtype_size(dtype);
  c->bytes += bytes;
  return ad_comm_is_dry(run->comm) ? AD_OK : ad_comm_alloc(run->comm, bytes, &out->data);
}

static void describe_value(const ad_run *run, const ad_value_transfer *c, size_t m, int backward, ad_array *out) {
  void *data = out->data;
  *out = described(run, c, m, backward);
  out->data = data;
}

/* The context of the functions below: a transfer whose value, or gradient, this rank receives into a buffer. */
typedef struct arriving {
  const ad_run *run;
  const ad_value_transfer *transfer;
} arriving;

/* Returns 1 if an action uses the buffer of a received value: from its RECV_F to the backward of the last phase that
 * needs the value. */
static int uses_value(const void *context, const ad_action *action) {
  const arriving *at = context;
  if (action->kind == AD_ACTION_RECV_F)
    return joins(at->run, at->transfer, (size_t)ad_action_peer(action), (size_t)action->stage);
  return needs(at->run, (size_t)action->stage, at->transfer);
}

/* Returns 1 if an action uses the buffer of a received gradient: from its RECV_B to the backward of the phase that gave
 * the value. */
static int uses_gradient(const void *context, const ad_action *action) {
  const arriving *at = context;
  if (action->kind == AD_ACTION_RECV_B)
    return joins(at->run, at->transfer, (size_t)action->stage, (size_t)ad_action_peer(action));
  return (action->kind == AD_ACTION_B || action->kind == AD_ACTION_I) &&
         gives(at->run, (size_t)action->stage, at->transfer);
}

static ad_status create_way(const ad_run *run, ad_value_transfer *c, int backward) {
  ad_transfer_way *way = &c->ways[backward];
  ad_dtype comm_dtype = comm_dtype_of(run, c, backward);
  arriving at = {run, c};
  int arrives = is_source(c) == backward;
  size_t elements = arrives || comm_dtype ? most_elements(run, c) : 0;
  if (arrives)
    AD_TRY(ad_order_most_at_once(&run->order, (ad_order_use){backward ? uses_gradient : uses_value, &at}, &way->count));
  else
    way->count = run->in_flight.count;
  AD_TRY(ad_new(way->count, &way->requests));
  AD_TRY(ad_new(way->count, &way->travels));
  AD_TRY(ad_new(way->count, &way->posted));
  if (arrives) AD_TRY(ad_new(way->count, &way->arrived));
  for (size_t i = 0; i < way->count; i++) {
    if (comm_dtype) AD_TRY(take_buffer(run, c, elements, comm_dtype, &way->travels[i]));
    if (arrives) AD_TRY(take_buffer(run, c, elements, dtype_of(run, c, backward), &way->arrived[i]));
  }
  return AD_OK;
}

static ad_status create_one(const ad_run *run, ad_value_transfer *c) {
  AD_TRY(create_way(run, c, 0));
  return c->spec->one_way ? AD_OK : create_way(run, c, 1);
}

size_t ad_transfers_bytes(const ad_run *run) {
  size_t bytes = 0;
  for (size_t i = 0; i < run->transfers.count; i++) bytes += run->transfers.list[i].bytes;
  return bytes;
}

static int is_of_this_rank(const ad_transfer_spec *spec) {
  return ad_bridge_is_disjoint(spec->bridge) &&
         (ad_bridge_has_source(spec->bridge) || ad_bridge_has_destination(spec->bridge));
}

ad_status ad_transfers_create(ad_run *run) {
  size_t count = ad_program_transfer_count(run->program);
  AD_TRY(ad_new(count, &run->transfers.list));
  AD_TRY(ad_transfer_overflow_create(run));
  for (size_t i = 0; i < count; i++) {
    const ad_transfer_spec *spec = ad_program_transfer(run->program, i);
    if (!is_of_this_rank(spec)) continue;
    ad_value_transfer *c = &run->transfers.list[run->transfers.count++];
    *c = (ad_value_transfer){.spec = spec, .value = ad_program_find_value(run->program, spec->value)};
    AD_TRY(create_one(run, c));
  }
  return AD_OK;
}

static void destroy_way(const ad_run *run, ad_transfer_way *way) {
  for (size_t i = 0; i < way->count; i++) {
    if (way->arrived) ad_comm_free(run->comm, way->arrived[i].data);
    if (way->travels) ad_comm_free(run->comm, way->travels[i].data);
  }
  ad_release(way->arrived);
  ad_release(way->travels);
  ad_release(way->requests);
  ad_release(way->posted);
}

void ad_transfers_destroy(ad_run *run) {
  for (size_t i = 0; i < run->transfers.count; i++) {
    destroy_way(run, &run->transfers.list[i].ways[0]);
    destroy_way(run, &run->transfers.list[i].ways[1]);
  }
  ad_release(run->transfers.list);
  run->transfers.list = NULL;
  run->transfers.count = 0;
  ad_transfer_overflow_destroy(run);
}

/* ---- checking that every microbatch is sent once ---- */

void ad_transfers_begin_pass(ad_run *run) {
  for (size_t i = 0; i < run->transfers.count; i++)
    for (int backward = 0; backward < 2; backward++) {
      const ad_transfer_way *way = &run->transfers.list[i].ways[backward];
      for (size_t place = 0; place < way->count; place++) way->posted[place] = -1;
    }
}

/* Records that the transfer of microbatch m is posted. Returns AD_INVALID if it was posted before. */
static ad_status note_posted(const ad_value_transfer *c, size_t m, int backward) {
  int64_t *posted = &c->ways[backward].posted[slot_of(&c->ways[backward], m)];
  if (*posted == (int64_t)m)
    return ad_fail(AD_INVALID,
                   "the schedule sends or receives %s`%s` of microbatch %zu a second time; leave the second action out",
                   backward ? "the gradient of " : "", c->spec->value, m);
  *posted = (int64_t)m;
  return AD_OK;
}

/* Returns AD_INVALID if microbatch m, which is about to be used, was not received. */
static ad_status check_posted(const ad_value_transfer *c, size_t m, int backward) {
  if (c->ways[backward].posted[slot_of(&c->ways[backward], m)] == (int64_t)m) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the schedule uses %s`%s` of microbatch %zu before the action %s receives the value; put the "
                 "receiving action first",
                 backward ? "the gradient of " : "", c->spec->value, m,
                 ad_action_name(backward ? AD_ACTION_RECV_B : AD_ACTION_RECV_F));
}

/* ---- casting to and from the dtype in which values are sent ---- */

/* Returns the array that is sent: `value` itself if `comm_dtype` is 0; otherwise an array with the shape and layout of
 * `value`, in that dtype and in the memory of `travels`. */
static ad_array in_comm_dtype(const ad_array *value, ad_array *travels, ad_dtype comm_dtype) {
  void *data = travels->data;
  if (!comm_dtype) return *value;
  *travels = *value;
  travels->dtype = comm_dtype;
  travels->data = data;
  return *travels;
}

static void cast(const ad_array *to, const ad_array *from) {
  if (to->data && to->data != from->data) ad_cast(to->data, to->dtype, from->data, from->dtype, ad_array_numel(to));
}

/* ---- the injection point for every transferred value ---- */

static void pass_injection_point(ad_injection_point point, const ad_run *run, const ad_value_transfer *c, size_t m) {
  const ad_transfer_way *way = &c->ways[is_source(c)];
  ad_transfer_passing passing = {.run = run, .transfer = c, .microbatch = m};
  passing.array = &way->arrived[slot_of(way, m)];
  passing.given = ad_run_microbatch(run, m)->values[c->value].output;
  ad_inject(point, &passing);
}

/* ---- waiting for transfers ---- */

static ad_status wait(ad_run *run, ad_request *request, ad_trace_kind kind, size_t m) {
  if (!request->id) return AD_OK;
  int64_t begin = ad_now();
  ad_trace_begin(&run->trace, kind, (int64_t)m, 0);
  AD_TRY(ad_comm_wait(run->comm, request));
  ad_trace_end(&run->trace, kind, (int64_t)m);
  run->trace.transfer += ad_now() - begin;
  return AD_OK;
}

/* Waits until the slot of microbatch m is free. Backward of a one-way transfer sends nothing, so nothing is waited
 * for. */
static ad_status wait_way(ad_run *run, ad_transfer_way *way, ad_trace_kind kind, size_t m) {
  return way->count ? wait(run, &way->requests[slot_of(way, m)], kind, m) : AD_OK;
}

ad_status ad_transfers_wait_space(ad_run *run, size_t p, size_t m) {
  size_t tapes = ad_run_phase(run, p)->tape_count;
  for (size_t i = 0; i < run->transfers.count && m >= tapes; i++) {
    ad_value_transfer *c = &run->transfers.list[i];
    if (gives(run, p, c)) AD_TRY(wait_way(run, &c->ways[0], AD_TRACE_SENT, m - tapes));
    if (needs(run, p, c)) AD_TRY(wait_way(run, &c->ways[1], AD_TRACE_SENT, m - tapes));
  }
  return AD_OK;
}

ad_status ad_transfers_wait_value(ad_run *run, size_t value, size_t m) {
  for (size_t i = 0; i < run->transfers.count; i++) {
    ad_value_transfer *c = &run->transfers.list[i];
    ad_transfer_way *way = &c->ways[0];
    if (c->value != value || is_source(c)) continue;
    AD_TRY(check_posted(c, m, 0));
    AD_TRY(wait_way(run, way, AD_TRACE_VALUE, m));
    if (comm_dtype_of(run, c, 0)) cast(&way->arrived[slot_of(way, m)], &way->travels[slot_of(way, m)]);
    pass_injection_point(AD_INJECT_ARRIVED, run, c, m);
  }
  return AD_OK;
}

static ad_status take_gradient(ad_run *run, ad_value_transfer *c, size_t m) {
  ad_transfer_way *way = &c->ways[1];
  if (c->spec->one_way) return AD_OK;
  AD_TRY(check_posted(c, m, 1));
  AD_TRY(wait_way(run, way, AD_TRACE_GRADIENT, m));
  if (comm_dtype_of(run, c, 1)) cast(&way->arrived[slot_of(way, m)], &way->travels[slot_of(way, m)]);
  return AD_OK;
}

ad_status ad_transfers_wait_gradients(ad_run *run, size_t p, size_t m) {
  for (size_t i = 0; i < run->transfers.count; i++)
    if (gives(run, p, &run->transfers.list[i])) AD_TRY(take_gradient(run, &run->transfers.list[i], m));
  return AD_OK;
}

ad_status ad_transfers_settle(ad_run *run) {
  for (size_t i = 0; i < run->transfers.count; i++)
    for (int backward = 0; backward < 2; backward++) {
      ad_transfer_way *way = &run->transfers.list[i].ways[backward];
      for (size_t m = 0; m < way->count; m++) AD_TRY(wait_way(run, way, AD_TRACE_SENT, m));
    }
  return AD_OK;
}

/* ---- posting transfers ---- */

static ad_status check_given(const ad_value_transfer *c, const ad_passed_value *passed, size_t m) {
  if (!is_source(c) || passed->output) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the schedule sends `%s` of microbatch %zu before the phase that computes this value has run; put the "
                 "send after this phase",
                 c->spec->value, m);
}

/* Posts one transfer: this rank sends `in` (and `out` is NULL), or receives `out` (and `in` is NULL). */
static ad_status post(ad_run *run, const ad_value_transfer *c, int backward, const ad_array *in, ad_array *out,
                      ad_request *request) {
  ad_bridge *bridge = c->spec->bridge;
  int64_t begin = ad_now();
  ad_status status = backward ? ad_bridge_post_backward_at(bridge, in, out, request, c->spec->value)
                              : ad_bridge_post_forward_at(bridge, in, out, request, c->spec->value);
  run->trace.transfer += ad_now() - begin;
  return status;
}

static ad_status post_value(ad_run *run, ad_value_transfer *c, size_t m) {
  ad_transfer_way *way = &c->ways[0];
  size_t place = slot_of(way, m);
  ad_passed_value *passed = &ad_run_microbatch(run, m)->values[c->value];
  ad_request *request = &way->requests[place];
  AD_TRY(check_given(c, passed, m));
  AD_TRY(note_posted(c, m, 0));
  const ad_array *value = is_source(c) ? ad_tensor_array(passed->output) : &way->arrived[place];
  AD_TRY(wait(run, request, AD_TRACE_SENT, m));
  if (!is_source(c)) describe_value(run, c, m, 0, &way->arrived[place]);
  ad_array travels = in_comm_dtype(value, &way->travels[place], comm_dtype_of(run, c, 0));
  if (is_source(c)) {
    cast(&travels, value);
    ad_transfer_overflow_note(run, c->spec, 0, &travels, value);
    return post(run, c, 0, &travels, NULL, request);
  }
  passed->arrived = value;
  return post(run, c, 0, NULL, &travels, request);
}

ad_status ad_transfers_post_values(ad_run *run, size_t from, size_t to, size_t m) {
  for (size_t i = 0; i < run->transfers.count; i++)
    if (joins(run, &run->transfers.list[i], from, to)) AD_TRY(post_value(run, &run->transfers.list[i], m));
  return AD_OK;
}

/* Sums the gradients of all phases that needed the value (law 6, like adds to like), so that the sum can be sent
 * back. */
static ad_status add_gradients(const ad_run *run, const ad_value_transfer *c, size_t m, ad_array *sum) {
  const ad_passed_value *passed = &ad_run_microbatch(run, m)->values[c->value];
  int arrived = 0;
  AD_TRY(ad_passed_gradients(passed, ad_run_own_phases(run), sum, &arrived));
  if (arrived) return AD_OK;
  return ad_fail(AD_INVALID,
                 "other ranks sent the value `%s` and wait for its gradient, but no loss of microbatch %zu on this "
                 "rank depends on `%s`; use the value, or leave out its transfer",
                 c->spec->value, m, c->spec->value);
}

static ad_status post_gradient(ad_run *run, ad_value_transfer *c, size_t m) {
  ad_transfer_way *way = &c->ways[1];
  size_t place = slot_of(way, m);
  ad_request *request = &way->requests[place];
  ad_dtype comm_dtype = comm_dtype_of(run, c, 1);
  AD_TRY(note_posted(c, m, 1));
  AD_TRY(wait(run, request, AD_TRACE_SENT, m));
  if (is_source(c)) {
    describe_value(run, c, m, 1, &way->arrived[place]);
    ad_array travels = in_comm_dtype(&way->arrived[place], &way->travels[place], comm_dtype);
    return post(run, c, 1, NULL, &travels, request);
  }
  ad_array sum;
  AD_TRY(add_gradients(run, c, m, &sum));
  ad_array travels = in_comm_dtype(&sum, &way->travels[place], comm_dtype);
  cast(&travels, &sum);
  ad_transfer_overflow_note(run, c->spec, 1, &travels, &sum);
  return post(run, c, 1, &travels, NULL, request);
}

ad_status ad_transfers_post_gradients(ad_run *run, size_t from, size_t to, size_t m) {
  for (size_t i = run->transfers.count; i-- > 0;) {
    ad_value_transfer *c = &run->transfers.list[i];
    if (!c->spec->one_way && joins(run, c, from, to)) AD_TRY(post_gradient(run, c, m));
  }
  return AD_OK;
}

ad_status ad_transfers_add_returned(const ad_run *run, size_t value, size_t m, ad_array *sum, int *arrived) {
  for (size_t i = 0; i < run->transfers.count; i++) {
    const ad_value_transfer *c = &run->transfers.list[i];
    const ad_transfer_way *way = &c->ways[1];
    if (c->value != value || !is_source(c) || c->spec->one_way) continue;
    pass_injection_point(AD_INJECT_RETURNED, run, c, m);
    AD_TRY(ad_gradient_joins(sum, &way->arrived[slot_of(way, m)], arrived));
  }
  return AD_OK;
}
