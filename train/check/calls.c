/* Counts a rank's collectives where they are posted, and compares the counts with the plan's. */
#include "check/calls.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "array/array.h"
#include "array/transit.h"
#include "base/memory.h"
#include "base/injection.h"
#include "check/leaf_sums.h"
#include "check/lifted_injections.h"
#include "check/checker.h"
#include "comm/dry.h"
#include "mesh/group.h"
#include "module/module.h"
#include "reduce/precision_policy.h"
#include "reduce/plan.h"
#include "step/run.h"

/* ---- counting the calls that this rank posts ---- */

static int is_same(const ad_calls_kind *a, const ad_calls_kind *b) {
  return a->op == b->op && a->dtype == b->dtype && a->axes == b->axes && ad_shape_same(&a->shape, &b->shape);
}

static ad_calls_kind *find_kind(const ad_calls *calls, const ad_calls_kind *kind) {
  for (size_t i = 0; i < calls->count; i++)
    if (is_same(&calls->kinds[i], kind)) return &calls->kinds[i];
  return NULL;
}

static ad_calls_kind *make_room(ad_calls *calls, const ad_calls_kind *kind) {
  if (calls->count == calls->capacity) {
    size_t capacity = 2 * calls->capacity + 16;
    calls->status = ad_grow(&calls->kinds, calls->capacity, capacity);
    if (calls->status) return NULL;
    calls->capacity = capacity;
  }
  calls->kinds[calls->count] = *kind;
  return &calls->kinds[calls->count++];
}

static void count_call(ad_calls *calls, const ad_calls_kind *one) {
  ad_calls_kind *to = find_kind(calls, one);
  if (!to) to = make_room(calls, one);
  if (!to) return;
  to->times++;
  to->bytes += one->bytes;
}

/* Returns 1 if a call is counted. Only calls with float values over several ranks are counted, because only they may
 * carry gradients. */
static int counts(const ad_call *call) { return call->members > 1 && ad_dtype_is_float(call->dtype); }

static void add_call(void *context, void *passing) {
  const ad_call_passing *pass = passing;
  const ad_call *call = pass->call;
  ad_calls *calls = context;
  if (pass->comm != calls->comm || !counts(call)) return;
  count_call(calls, &(ad_calls_kind){.op = call->op,
                                     .dtype = call->dtype,
                                     .axes = call->axes,
                                     .shape = call->shape,
                                     .bytes = call->in_bytes + call->out_bytes});
}

void ad_calls_watch(ad_calls *calls, const ad_comm *comm) {
  calls->comm = comm;
  ad_injection_set(AD_INJECT_CALL, (ad_injection){add_call, calls});
}
void ad_calls_stop(void) { ad_injection_set(AD_INJECT_CALL, (ad_injection){0}); }
static void clear_calls(ad_calls *calls) { calls->count = 0; }
void ad_calls_release(ad_calls *calls) { ad_release(calls->kinds); }

/* ---- counting the plan's collectives ---- */

/* Counts a transition, which backend dry does not post, as the collective that it would be. */
static void add_transit(void *context, void *passing) {
  const ad_transit_passing *pass = passing;
  ad_axes axes = pass->transit->axes;
  ad_calls *calls = context;
  if (pass->comm != calls->comm || !ad_move_moves_bytes(pass->transit->move)) return;
  ad_group group = ad_array_group(pass->comm, pass->in, axes);
  if (ad_group_size(&group) < 2 || !ad_dtype_is_float(pass->in->dtype)) return;
  ad_node nodes[AD_NODES_MAX];
  size_t given = ad_leaf_sums_given(pass, ad_comm_rank(pass->comm), nodes), taken = ad_leaf_sums_taken(pass, nodes);
  count_call(calls, &(ad_calls_kind){.op = pass->transit->send_rows ? AD_EXCHANGE : ad_move_op(pass->transit->move),
                                     .dtype = pass->in->dtype,
                                     .axes = axes,
                                     .shape = ad_group_canonical(&group),
                                     .bytes = given * ad_array_bytes(pass->in) + taken * ad_array_bytes(pass->out)});
}

/* Takes the step again, in a second run on backend dry, and counts its collectives. */
static ad_status take_step(ad_comm *dry, const ad_run *run, int64_t step, ad_calls *out) {
  ad_run_options options = run->options;
  ad_run *again;
  options.trace = NULL;
  options.quiet = 1;
  ad_step_report report;
  AD_TRY(ad_run_create(dry, run->recipe, &options, &again));
  ad_calls_watch(out, dry);
  /* backend dry posts no collectives for transitions */
  ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){add_transit, out});
  ad_status status = ad_run_step(again, step, &report);
  ad_run_destroy(again);
  return status ? status : out->status;
}

ad_status ad_calls_plan(const ad_run *run, int64_t step, ad_calls *out) {
  ad_comm *dry;
  AD_TRY(ad_comm_open_dry_like(run->comm, &dry));
  ad_lifted_injections lifted = ad_injections_lift();
  ad_status status = take_step(dry, run, step, out);
  ad_injections_restore(&lifted);
  ad_comm_close(dry);
  return status;
}

/* ---- comparing the two counts ---- */

static const ad_calls_kind none;

/* Returns 1 for an exchange. Exchanges are compared by their number of calls alone, and only if the plan has an
 * exchange over the same group. The plan has the exchanges of experts' rows, without the number of rows; it has no
 * exchanges of a ring or a bridge. */
static int is_exchange(const ad_calls_kind *kind) { return kind->op == AD_EXCHANGE; }

static int is_equal(const ad_calls_kind *a, const ad_calls_kind *b) {
  return a->times == b->times && (is_exchange(a) || a->bytes == b->bytes);
}

static void report_difference(const ad_calls_kind *kind, const ad_calls_kind *made, const ad_calls_kind *planned,
                              char *text, size_t size) {
  char axes[80];
  ad_axes_print(kind->axes, axes, sizeof axes);
  snprintf(text, size,
           "%s of %s over %s: %" PRId64 " calls with %" PRIu64 " bytes, but the plan has %" PRId64
           " calls with %" PRIu64 " bytes",
           ad_op_name(kind->op), ad_dtype_name(kind->dtype), axes, made->times, made->bytes, planned->times,
           planned->bytes);
}

int ad_calls_equal(const ad_calls *made, const ad_calls *planned, char *text, size_t size) {
  for (size_t i = 0; i < made->count; i++) {
    const ad_calls_kind *kind = &made->kinds[i], *other = find_kind(planned, kind);
    if (other ? is_equal(kind, other) : is_exchange(kind)) continue;
    report_difference(kind, kind, other ? other : &none, text, size);
    return 0;
  }
  for (size_t i = 0; i < planned->count; i++) {
    const ad_calls_kind *kind = &planned->kinds[i];
    if (find_kind(made, kind)) continue;
    report_difference(kind, &none, kind, text, size);
    return 0;
  }
  return 1;
}

/* ---- checking that each gradient is reduced as its precision policy says ---- */

static void report_policy(const ad_precision_policy *policy, char *text, size_t size) {
  snprintf(text, size, "param %s, grad %s, reduce %s, accumulate %s", ad_dtype_name(policy->param),
           policy->grad ? ad_dtype_name(policy->grad) : "raw", ad_dtype_name(policy->reduce),
           ad_dtype_name(policy->accumulate));
}

static int same_policy(const ad_precision_policy *a, const ad_precision_policy *b) {
  return a->param == b->param && a->grad == b->grad && a->raw == b->raw && a->reduce == b->reduce &&
         a->accumulate == b->accumulate;
}

int ad_calls_keep_policies(const ad_run *run, char *text, size_t size) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_run_param at = ad_run_param_at(run, i);
    ad_module *module = ad_run_module(run, at.module);
    ad_precision_policy given = at.spec->policy, kept;
    char is[96], should[96];
    if (!module || ad_precision_policy_complete(&given)) continue;
    kept = ad_reducer_precision_policy(ad_module_reducer(module), at.param);
    if (same_policy(&kept, &given)) continue;
    report_policy(&kept, is, sizeof is);
    report_policy(&given, should, sizeof should);
    snprintf(text, size, "`%s` is reduced as %s; its precision policy is %s", at.spec->name, is, should);
    return 0;
  }
  return 1;
}

/* ---- counting in a check's step ---- */

ad_status ad_calls_begin(ad_checker *checker, int64_t step) {
  clear_calls(&checker->made);
  clear_calls(&checker->planned);
  AD_TRY(ad_calls_plan(checker->run, step, &checker->planned));
  ad_calls_watch(&checker->made, checker->comm);
  return AD_OK;
}

/* Sets *out, on all ranks, to the first rank whose collectives differ from its plan, or to the number of ranks if none
 * differ. */
static ad_status first_that_differs(const ad_checker *checker, int equal, int64_t *out) {
  *out = equal ? ad_comm_size(checker->comm) : ad_comm_rank(checker->comm);
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .group = checker->everyone, .in = out, .out = out, .count = 1};
  call.dtype = AD_I64;
  call.reduction = AD_MIN;
  call.site = AD_HERE;
  return ad_comm_run(checker->comm, &call);
}

/* Adds the first rank's collectives and bytes to the check's result. */
static void note_count(const ad_checker *checker) {
  ad_check_result *result = checker->job->result;
  for (size_t i = 0; i < checker->made.count; i++) {
    result->call_count += checker->made.kinds[i].times;
    result->call_bytes += checker->made.kinds[i].bytes;
  }
}

/* A text as the i32 words that a broadcast sends. */
typedef union words {
  int32_t aligned[AD_CALLS_TEXT / sizeof(int32_t)];
  char text[AD_CALLS_TEXT];
} words;

ad_status ad_calls_end(ad_checker *checker) {
  words own = {.text = ""};
  char *text = own.text;
  int64_t first = 0;
  checker->counts_calls = 0;
  AD_TRY(checker->made.status);
  int equal = ad_calls_keep_policies(checker->run, text, AD_CALLS_TEXT) &&
              ad_calls_equal(&checker->made, &checker->planned, text, AD_CALLS_TEXT);
  if (checker->reference) note_count(checker);
  AD_TRY(first_that_differs(checker, equal, &first));
  if (first == ad_comm_size(checker->comm)) return AD_OK;
  ad_collective shared = {
      .size = sizeof shared, .op = AD_BROADCAST, .group = checker->everyone, .in = own.aligned, .out = own.aligned};
  shared.count = sizeof own.aligned / sizeof *own.aligned;
  shared.dtype = AD_I32;
  shared.root = first;
  shared.site = AD_HERE;
  AD_TRY(ad_comm_run(checker->comm, &shared));
  if (checker->reference) snprintf(checker->job->result->calls, AD_CALLS_TEXT, "rank %" PRId64 ": %.200s", first, text);
  return AD_OK;
}
