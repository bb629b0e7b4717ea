/* Finds the conversions that would repair a refused operation, by trying: on the failed tape, on backend dry, it
 * records each conversion, then the operation. ad_repair_begin runs a step with one of these conversions, and so shows
 * what the program would be with the conversion in its source. */
#include "tensor/repair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
#include "base/injection.h"
#include "base/text.h"
#include "layout/type.h"
#include "tensor/tape.h"

enum { TYPES_MAX = 4 + 2 * AD_DIMS_MAX };

/* ---- listing repairs and printing them ---- */

/* Lists all types that a value with `ndim` dimensions may have; returns their number. */
static int all_types(int ndim, ad_type out[TYPES_MAX]) {
  int count = 0;
  const ad_type same[] = {AD_R, AD_I, AD_V, AD_P};
  for (size_t i = 0; i < sizeof same / sizeof *same; i++) out[count++] = same[i];
  for (int dim = 0; dim < ndim; dim++) {
    out[count++] = AD_S(dim);
    out[count++] = AD_S_ZIGZAG(dim);
  }
  return count;
}

int ad_repair_states(const ad_repair *repair) {
  for (int i = 0; i < repair->way.count; i++)
    if (ad_move_states(repair->way.move[i], repair->way.from[i])) return 1;
  return 0;
}

const char *ad_repair_print(const ad_repair *repair, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  char from[AD_TYPE_TEXT_MAX], to[AD_TYPE_TEXT_MAX], axes[80];
  for (int i = 0; i < repair->way.count; i++)
    ad_text_add(&text, "%s%s operand %d %s->%s", i ? ", then " : "", ad_move_name(repair->way.move[i]),
                repair->operand + 1, ad_type_print(repair->way.from[i], from, sizeof from),
                ad_type_print(repair->way.to[i], to, sizeof to));
  ad_text_add(&text, " on `%s`", ad_axes_print(repair->axes, axes, sizeof axes));
  if (repair->is_before) ad_text_add(&text, " before %s at %s", repair->op, repair->site);
  if (repair->stays) ad_text_add(&text, ", and use the result from there on");
  return buffer;
}

/* Copies the place (FILE:LINE) of a call. If the text is too long, copies only its end, which has the line, after
 * "...". */
static void keep_site(const char *site, char out[AD_REPAIR_SITE_SIZE]) {
  size_t length = strlen(site), most = AD_REPAIR_SITE_SIZE - 1 - strlen("...");
  int is_cut = length >= AD_REPAIR_SITE_SIZE;
  snprintf(out, AD_REPAIR_SITE_SIZE, "%s%s", is_cut ? "..." : "", is_cut ? site + length - most : site);
}

/* ---- which conversions the refused call would accept ---- */

/* A conversion that is tried: the refused call, one of its operands, and the chain of single-operand calls that made
 * this operand. calls[0] made the operand, calls[1] made the operand of calls[0]. */
enum { CALLS_MAX = 4 };
typedef struct trying {
  ad_repairs *to;
  const ad_operation_passing *call;
  int operand;
  const ad_tensor *calls[CALLS_MAX];
  int depth; /* how many of `calls` are repeated after the conversion; 0: only the refused call is repeated */
  ad_repair repair;
} trying;

/* Records the conversions of a repair on x. */
static ad_tensor *walk(ad_tape *tape, ad_tensor *x, const ad_repair *repair, const char *site) {
  char axes[80];
  ad_axes_print(repair->axes, axes, sizeof axes);
  for (int i = 0; i < repair->way.count; i++)
    x = ad_move_at(tape, x, repair->way.move[i], axes, repair->way.to[i], site);
  return x;
}

/* Returns the tensor that is converted. */
static ad_tensor *converted(const trying *t) {
  return t->depth ? t->calls[t->depth - 1]->operand[0] : t->call->operands[t->operand];
}

/* Returns 1 if the refused call accepts the operand with this conversion. */
static int is_taken(const trying *t) {
  const ad_operation_passing *call = t->call;
  ad_tape *tape = call->tape;
  ad_tensor *operands[AD_OPERANDS_MAX];
  memcpy(operands, call->operands, (size_t)call->count * sizeof *operands);
  tape->status = AD_OK;
  ad_tensor *x = walk(tape, converted(t), &t->repair, call->site);
  for (int i = t->depth; i-- > 0;) x = ad_tape_apply(tape, t->calls[i]->op, &x, 1, t->calls[i]->own, t->calls[i]->site);
  operands[t->operand] = x;
  ad_tape_apply(tape, call->op, operands, call->count, call->own, call->site);
  return tape->status == AD_OK;
}

static void list(ad_repairs *to, const ad_repair *repair) {
  if (to->count == to->capacity) {
    size_t capacity = 2 * to->capacity + 16;
    to->status = ad_grow(&to->list, to->capacity, capacity);
    if (to->status) return;
    to->capacity = capacity;
  }
  to->list[to->count++] = *repair;
}

/* Tries one conversion. If it is accepted, lists it twice: for this call alone, and for later uses of the operand,
 * too. */
static void try_way(trying *t) {
  if (t->to->status || !is_taken(t)) return;
  for (int stays = 0; stays < 2; stays++) {
    t->repair.stays = stays;
    list(t->to, &t->repair);
  }
  t->repair.stays = 0;
}

/* Tries every conversion from the operand's type that takes at most two transitions. */
static void try_ways(trying *t, ad_type from, int ndim) {
  ad_type types[TYPES_MAX];
  int count = all_types(ndim, types);
  for (int i = 0; i < count; i++) {
    ad_way direct = ad_way_direct(from, types[i]);
    if (!direct.count || types[i] == from) continue;
    t->repair.way = direct;
    try_way(t);
    for (int j = 0; j < count; j++) {
      ad_way second = ad_way_direct(types[i], types[j]);
      if (!second.count || types[j] == from) continue;
      t->repair.way = (ad_way){2, {direct.move[0], second.move[0]}, {from, types[i]}, {types[i], types[j]}};
      try_way(t);
    }
  }
}

static void try_axes(trying *t, ad_axes axes, ad_type from, int ndim) {
  t->repair.axes = axes;
  try_ways(t, from, ndim);
}

/* Tries conversions on each axis, on both axes of dp, and on all axes where the operand has one type: first only on
 * those that the mesh names, then on all. */
static void try_all_axes(trying *t, const ad_array *x) {
  ad_axes named = ad_mesh_named(x->layout.mesh), tried = 0;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_type from = x->layout.type[axis];
    ad_axes all = ad_layout_axes_of(&x->layout, from), identical = all & named, dp = identical & AD_AXES_DP;
    if (!(named & AD_AXES(axis))) continue;
    try_axes(t, AD_AXES(axis), from, x->shape.ndim);
    if (tried & AD_AXES(axis)) continue;
    if (dp == AD_AXES_DP && identical != dp && (dp & AD_AXES(axis)) && !(tried & dp))
      try_axes(t, dp, from, x->shape.ndim);
    if (identical != AD_AXES(axis)) try_axes(t, identical, from, x->shape.ndim);
    if (all != identical) try_axes(t, all, from, x->shape.ndim);
    tried |= identical;
  }
}

static void try_here(trying *t) {
  const ad_operation *op = t->depth ? t->calls[t->depth - 1]->op : t->call->op;
  keep_site(t->depth ? t->calls[t->depth - 1]->site : t->call->site, t->repair.site);
  t->repair.op = op->name;
  t->repair.operand = t->depth ? 0 : t->operand;
  t->repair.is_before = t->depth > 0;
  try_all_axes(t, &converted(t)->array);
}

/* Tries conversions before the refused call, and before the single-operand calls that led to it. */
static void try_operand(trying *t, int operand) {
  t->operand = operand;
  for (t->depth = 0; t->depth < CALLS_MAX; t->depth++) {
    try_here(t);
    const ad_tensor *made = converted(t);
    if (!made->op || made->operand_count != 1) return;
    t->calls[t->depth] = made;
  }
}

static int owns_all(const ad_operation_passing *call) {
  for (int i = 0; i < call->count; i++)
    if (!ad_tape_owns(call->tape, call->operands[i])) return 0;
  return 1;
}

/* Returns 1 if the operation is a transition, for which no repairs are searched: the error message of a transition
 * lists what the table of transitions allows. */
static int is_move(const ad_operation *op) {
  for (int move = 0; move < AD_MOVE_COUNT; move++)
    if (!strcmp(op->name, ad_move_name((ad_move)move))) return 1;
  return !strcmp(op->name, "move");
}

/* Compares two repairs for sorting: repairs that state no unchecked fact come first, then repairs of fewer steps, then
 * repairs of the refused call itself. */
static int before(const void *a, const void *b) {
  const ad_repair *one = a, *other = b;
  int by_states = ad_repair_states(one) - ad_repair_states(other), by_steps = one->way.count - other->way.count;
  if (by_states) return by_states;
  if (by_steps) return by_steps;
  if (one->is_before != other->is_before) return one->is_before - other->is_before;
  if (one->operand != other->operand) return one->operand - other->operand;
  if (one->axes != other->axes) return one->axes < other->axes ? -1 : 1;
  for (int i = 0; i < one->way.count; i++)
    if (one->way.to[i] != other->way.to[i]) return (int)one->way.to[i] - (int)other->way.to[i];
  return one->stays - other->stays;
}

/* Called at a refused operation: collects its repairs, then restores the tape's error. */
static void note_refused(void *context, void *passing) {
  ad_repairs *to = context;
  const ad_operation_passing *call = passing;
  ad_tape *tape = call->tape;
  ad_tape failed = *tape;
  if (to->refused || !tape->dry || !owns_all(call) || is_move(call->op)) return;
  to->refused = 1;
  ad_injection watched = ad_injection_set(AD_INJECT_REFUSED, (ad_injection){0});
  trying t = {.to = to, .call = call};
  tape->reported = 1; /* errors of the trials must not be reported to the other ranks */
  for (int i = 0; i < call->count; i++) try_operand(&t, i);
  ad_injection_set(AD_INJECT_REFUSED, watched);
  tape->status = failed.status;
  tape->reported = failed.reported;
  memcpy(tape->message, failed.message, sizeof tape->message);
  if (to->count) qsort(to->list, to->count, sizeof *to->list, before);
}

void ad_repairs_watch(ad_repairs *repairs) {
  ad_injection_set(AD_INJECT_REFUSED, (ad_injection){note_refused, repairs});
}
void ad_repairs_end(void) { ad_injection_set(AD_INJECT_REFUSED, (ad_injection){0}); }
void ad_repairs_release(ad_repairs *repairs) { ad_release(repairs->list); }

/* ---- taking a step with a repair ---- */

/* Returns 1 if this call has the FILE:LINE and the operation of the repair's call, and its operand has the type from
 * which the repair converts. */
static int is_refused_call(const ad_repair *repair, const ad_operation_passing *call) {
  char site[AD_REPAIR_SITE_SIZE];
  keep_site(call->site, site);
  if (strcmp(repair->op, call->op->name) != 0 || strcmp(repair->site, site) != 0) return 0;
  if (repair->operand >= call->count || !ad_tape_owns(call->tape, call->operands[repair->operand])) return 0;
  ad_axes identical = ad_layout_axes_of(&call->operands[repair->operand]->array.layout, repair->way.from[0]);
  return !(repair->axes & ~identical);
}

/* Replaces each operand that was converted before by its converted value, if the repair is for all later uses of the
 * operand. */
static void use_what_stays(ad_mending *m, const ad_operation_passing *call) {
  if (call->tape->transitions < m->transitions) m->before = NULL; /* the tape was reset */
  for (int i = 0; i < call->count; i++)
    if (m->repair->stays && m->before && m->operands[i] == m->before) m->operands[i] = m->after;
}

static void convert_operand(ad_mending *m, const ad_operation_passing *call) {
  ad_tensor **operand = &m->operands[m->repair->operand];
  m->before = *operand;
  m->is_inside = m->fired = 1;
  m->after = walk(call->tape, *operand, m->repair, call->site);
  m->is_inside = 0;
  m->transitions = call->tape->transitions;
  *operand = m->after;
}

/* Called before each operation is recorded; may replace the operation's operands. */
static void pass_operands(void *context, void *passing) {
  ad_mending *m = context;
  ad_operation_passing *call = passing;
  m->calls++;
  if (m->is_inside) return;
  memcpy(m->operands, call->operands, (size_t)call->count * sizeof *m->operands);
  call->operands = m->operands;
  use_what_stays(m, call);
  if (is_refused_call(m->repair, call)) convert_operand(m, call);
}

void ad_repair_begin(ad_mending *mending) {
  ad_injection_set(AD_INJECT_OPERANDS, (ad_injection){pass_operands, mending});
}
void ad_repair_end(void) { ad_injection_set(AD_INJECT_OPERANDS, (ad_injection){0}); }
