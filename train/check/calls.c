/* Counts a rank's collectives where they are posted, and compares the counts with the plan's. */
#include "check/calls.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "array/array.h"
#include "array/transit.h"
#include "base/memory.h"
#include "base/seams.h"
#include "check/plants.h"
#include "check/prover.h"
#include "comm/dry.h"
#include "mesh/group.h"
#include "module/module.h"
#include "reduce/contract.h"
#include "reduce/plan.h"
#include "step/run.h"

/* ---- counting the calls that this rank posts ---- */

static int is_alike(const ad_calls_kind *a, const ad_calls_kind *b) {
  return a->op == b->op && a->dtype == b->dtype && a->axes == b->axes && ad_shape_same(&a->shape, &b->shape);
}

static ad_calls_kind *find(const ad_calls *calls, const ad_calls_kind *kind) {
  for (size_t i = 0; i < calls->count; i++)
    if (is_alike(&calls->kinds[i], kind)) return &calls->kinds[i];
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

static void add(ad_calls *calls, const ad_calls_kind *one) {
  ad_calls_kind *to = find(calls, one);
  if (!to) to = make_room(calls, one);
  if (!to) return;
  to->times++;
  to->bytes += one->bytes;
}

/* Only calls with float values over several ranks are counted: those that may carry gradients. */
static int counts(const ad_call *call) { return call->members > 1 && ad_dtype_is_float(call->dtype); }

static void add_call(void *context, void *passing) {
  const ad_call_passing *pass = passing;
  const ad_call *call = pass->call;
  ad_calls *calls = context;
  if (pass->comm != calls->comm || !counts(call)) return;
  add(calls, &(ad_calls_kind){.op = call->op,
                              .dtype = call->dtype,
                              .axes = call->axes,
                              .shape = call->shape,
                              .bytes = call->in_bytes + call->out_bytes});
}

void ad_calls_watch(ad_calls *calls, const ad_comm *comm) {
  calls->comm = comm;
  ad_seam_plant(AD_SEAM_CALL, (ad_seam_slot){add_call, calls});
}
void ad_calls_stop(void) { ad_seam_plant(AD_SEAM_CALL, (ad_seam_slot){0}); }
static void forget(ad_calls *calls) { calls->count = 0; }
void ad_calls_release(ad_calls *calls) { ad_release(calls->kinds); }

/* ---- counting the plan's collectives ---- */

/* Counts a transition that engine dry does not post as the collective that it would be. */
static void add_transit(void *context, void *passing) {
  const ad_transit_passing *pass = passing;
  ad_axes axes = pass->transit->axes;
  ad_calls *calls = context;
  if (pass->comm != calls->comm || !ad_move_moves_bytes(pass->transit->move)) return;
  ad_group group = ad_array_group(pass->comm, pass->in, axes);
  if (ad_group_size(&group) < 2 || !ad_dtype_is_float(pass->in->dtype)) return;
  add(calls, &(ad_calls_kind){.op = pass->transit->send_rows ? AD_EXCHANGE : ad_move_op(pass->transit->move),
                              .dtype = pass->in->dtype,
                              .axes = axes,
                              .shape = ad_group_canonical(&group),
                              .bytes = ad_array_bytes(pass->in) + ad_array_bytes(pass->out)});
}

/* Takes the step on a second run, on engine dry, and counts its collectives. */
static ad_status take_step(ad_comm *dry, const ad_run *run, int64_t step, ad_calls *out) {
  ad_run_options options = run->options;
  ad_run *again;
  options.trace = NULL;
  options.quiet = 1;
  ad_step_report report;
  AD_TRY(ad_run_create(dry, run->recipe, &options, &again));
  ad_calls_watch(out, dry);
  ad_seam_plant(AD_SEAM_TRANSIT, (ad_seam_slot){add_transit, out}); /* engine dry posts no collectives for
                                                                     * transitions */
  ad_status status = ad_run_step(again, step, &report);
  ad_run_destroy(again);
  return status ? status : out->status;
}

ad_status ad_calls_plan(const ad_run *run, int64_t step, ad_calls *out) {
  ad_comm *dry;
  AD_TRY(ad_comm_open_dry_like(run->comm, &dry));
  ad_plants plants = ad_plants_lift();
  ad_status status = take_step(dry, run, step, out);
  ad_plants_put_back(&plants);
  ad_comm_close(dry);
  return status;
}

/* ---- comparing the two counts ---- */

static const ad_calls_kind none;

/* Exchanges are compared by their number alone, and only if the plan has one over the same group: it knows that
 * experts' rows are exchanged, but not how many rows, and it has no exchanges of a ring or of a bridge. */
static int is_exchange(const ad_calls_kind *kind) { return kind->op == AD_EXCHANGE; }

static int is_equal(const ad_calls_kind *a, const ad_calls_kind *b) {
  return a->times == b->times && (is_exchange(a) || a->bytes == b->bytes);
}

static void say(const ad_calls_kind *kind, const ad_calls_kind *made, const ad_calls_kind *planned, char *text,
                size_t size) {
  char axes[80];
  ad_axes_print(kind->axes, axes, sizeof axes);
  snprintf(text, size, "%s of %s over %s: %" PRId64 " with %" PRIu64 " bytes, planned %" PRId64 " with %" PRIu64,
           ad_op_name(kind->op), ad_dtype_name(kind->dtype), axes, made->times, made->bytes, planned->times,
           planned->bytes);
}

int ad_calls_equal(const ad_calls *made, const ad_calls *planned, char *text, size_t size) {
  for (size_t i = 0; i < made->count; i++) {
    const ad_calls_kind *kind = &made->kinds[i], *other = find(planned, kind);
    if (other ? is_equal(kind, other) : is_exchange(kind)) continue;
    say(kind, kind, other ? other : &none, text, size);
    return 0;
  }
  for (size_t i = 0; i < planned->count; i++) {
    const ad_calls_kind *kind = &planned->kinds[i];
    if (find(made, kind)) continue;
    say(kind, &none, kind, text, size);
    return 0;
  }
  return 1;
}

/* ---- checking that each gradient is reduced as its contract says ---- */

static void say_contract(const ad_contract *contract, char *text, size_t size) {
  snprintf(text, size, "param %s, grad %s, reduce %s, accumulate %s", ad_dtype_name(contract->param),
           contract->grad ? ad_dtype_name(contract->grad) : "raw", ad_dtype_name(contract->reduce),
           ad_dtype_name(contract->accumulate));
}

static int same_contract(const ad_contract *a, const ad_contract *b) {
  return a->param == b->param && a->grad == b->grad && a->raw == b->raw && a->reduce == b->reduce &&
         a->accumulate == b->accumulate;
}

int ad_calls_keep_contracts(const ad_run *run, char *text, size_t size) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_run_param at = ad_run_param_at(run, i);
    ad_module *module = ad_run_module(run, at.module);
    ad_contract given = at.spec->contract, kept;
    char is[96], should[96];
    if (!module || ad_contract_complete(&given)) continue;
    kept = ad_reducer_contract(ad_module_reducer(module), at.param);
    if (same_contract(&kept, &given)) continue;
    say_contract(&kept, is, sizeof is);
    say_contract(&given, should, sizeof should);
    snprintf(text, size, "`%s` is reduced as %s; its contract is %s", at.spec->name, is, should);
    return 0;
  }
  return 1;
}

/* ---- counting in a proof's step ---- */

ad_status ad_calls_begin(ad_prover *prover, int64_t step) {
  forget(&prover->made);
  forget(&prover->planned);
  AD_TRY(ad_calls_plan(prover->run, step, &prover->planned));
  ad_calls_watch(&prover->made, prover->comm);
  return AD_OK;
}

/* The first rank whose collectives differ from its plan, told to all ranks; the number of ranks: none. */
static ad_status first_that_differs(const ad_prover *prover, int equal, int64_t *out) {
  *out = equal ? ad_comm_size(prover->comm) : ad_comm_rank(prover->comm);
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .group = prover->everyone, .in = out, .out = out, .count = 1};
  call.dtype = AD_I64;
  call.reduction = AD_MIN;
  call.site = AD_HERE;
  return ad_comm_run(prover->comm, &call);
}

/* Notes the first rank's collectives and bytes in the proof. */
static void note_count(const ad_prover *prover) {
  ad_proof *proof = prover->job->proof;
  for (size_t i = 0; i < prover->made.count; i++) {
    proof->call_count += prover->made.kinds[i].times;
    proof->call_bytes += prover->made.kinds[i].bytes;
  }
}

/* A text as the i32 words in which a broadcast moves it. */
typedef union words {
  int32_t aligned[AD_CALLS_TEXT / sizeof(int32_t)];
  char text[AD_CALLS_TEXT];
} words;

ad_status ad_calls_end(ad_prover *prover) {
  words own = {.text = ""};
  char *text = own.text;
  int64_t first = 0;
  prover->counts_calls = 0;
  AD_TRY(prover->made.status);
  int equal = ad_calls_keep_contracts(prover->run, text, AD_CALLS_TEXT) &&
              ad_calls_equal(&prover->made, &prover->planned, text, AD_CALLS_TEXT);
  if (prover->reference) note_count(prover);
  AD_TRY(first_that_differs(prover, equal, &first));
  if (first == ad_comm_size(prover->comm)) return AD_OK;
  ad_collective tell = {
      .size = sizeof tell, .op = AD_BROADCAST, .group = prover->everyone, .in = own.aligned, .out = own.aligned};
  tell.count = sizeof own.aligned / sizeof *own.aligned;
  tell.dtype = AD_I32;
  tell.root = first;
  tell.site = AD_HERE;
  AD_TRY(ad_comm_run(prover->comm, &tell));
  if (prover->reference) snprintf(prover->job->proof->calls, AD_CALLS_TEXT, "rank %" PRId64 ": %.200s", first, text);
  return AD_OK;
}
