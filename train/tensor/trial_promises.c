/* Checks the promises of a record about forward and backward (addend/operation.h), by calling both. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "addend/helpers.h"
#include "base/text.h"
#include "products/gemm.h"
#include "tensor/trial.h"

enum { POISON = 0xff, KEPT_MAX = AD_OPERANDS_MAX + 3, GUARD = 1 << 12 };

/* Memory that a call must leave unchanged, with a copy to compare it with. */
typedef struct kept {
  char what[32];
  const void *data;
  void *copy;
  size_t bytes;
} kept;

/* An operation that is recorded once and whose forward and backward are called again and again. */
typedef struct scene {
  const ad_trial *trial;
  ad_tape *tape;
  ad_tensor *out;
  size_t count;   /* number of operands */
  uint64_t fills; /* bit i: backward fills the gradient of operand i */
  ad_gradient_slot slot[AD_OPERANDS_MAX];
  void *all[AD_OPERANDS_MAX]; /* the operands' gradients, from one call that filled all of them */
  kept kept[KEPT_MAX];
  size_t kept_count;
  int hides;        /* 1: values that a call for some operands must not read are overwritten before the call */
  char *error_text; /* error message of a child process that failed */
} scene;

static size_t gradient_bytes(const scene *s, size_t i) { return ad_trial_numel(s->trial, i) * sizeof(double); }
static int is_filled(const scene *s, size_t i) { return (int)(s->fills >> i & 1); }

/* ---- memory that must not change ---- */

/* Copies the memory as it is now, for a later comparison. */
static ad_status copy_again(const scene *s, kept *of) {
  AD_TRY(ad_tape_take(s->tape, of->bytes, &of->copy));
  if (of->bytes) memcpy(of->copy, of->data, of->bytes);
  return AD_OK;
}

/* Adds memory that must not change; `what` names it in messages. */
static ad_status keep_memory(scene *s, const char *what, const void *data, size_t bytes) {
  kept *of = &s->kept[s->kept_count++];
  *of = (kept){.data = data, .bytes = bytes};
  snprintf(of->what, sizeof of->what, "%s", what);
  return copy_again(s, of);
}

static ad_status keep_all(scene *s) {
  const ad_tensor *out = s->out;
  AD_TRY(keep_memory(s, "the gradient that arrived", out->grad.data, ad_array_bytes(&out->grad)));
  AD_TRY(keep_memory(s, "what was saved", out->saved, out->op->saved ? out->op->saved(out) : 0));
  AD_TRY(keep_memory(s, "the result", out->array.data, ad_array_bytes(&out->array)));
  for (size_t i = 0; i < s->count; i++) {
    char name[32];
    snprintf(name, sizeof name, "operand %zu", i + 1);
    AD_TRY(keep_memory(s, name, out->operand[i]->array.data, ad_array_bytes(&out->operand[i]->array)));
  }
  return AD_OK;
}

static ad_status all_stayed(const scene *s, const char *call) {
  for (size_t i = 0; i < s->kept_count; i++) {
    const kept *of = &s->kept[i];
    if (of->bytes && memcmp(of->data, of->copy, of->bytes))
      return ad_trial_fail(s->trial, "%s must not change %s, but does", call, of->what);
  }
  return AD_OK;
}

/* ---- promise: forward called again gives the same result ---- */

static ad_status call_forward(const scene *s) {
  tape_mark mark = ad_tape_mark(s->tape);
  AD_TRY(ad_tape_take_scratch(s->tape, s->out));
  ad_status status = s->out->op->forward(s->tape, s->out);
  ad_status products = ad_gemm_status();
  if (!s->out->op->makes_memory) ad_tape_rewind(s->tape, mark);
  return status ? status : products;
}

/* Checks that forward did not change its operands. On one rank an operand is the full value that was drawn. */
static ad_status operands_are_as_drawn(const scene *s) {
  for (size_t i = 0; i < s->count; i++)
    for (size_t k = 0; k < ad_trial_numel(s->trial, i); k++)
      if (ad_array_get(&s->out->operand[i]->array, k) != s->trial->value[i][k])
        return ad_trial_fail(s->trial, "forward must not change operand %zu, but does", i + 1);
  return AD_OK;
}

static ad_status forward_is_repeatable(scene *s) {
  ad_array *result = &s->out->array;
  int shares = result->data == s->out->operand[0]->array.data;
  if (!shares && ad_array_bytes(result)) memset(result->data, POISON, ad_array_bytes(result));
  AD_TRY(operands_are_as_drawn(s));
  AD_TRY(call_forward(s));
  AD_TRY(operands_are_as_drawn(s));
  kept *saved = &s->kept[1], *first = &s->kept[2];
  first->data = result->data;
  if (first->bytes != ad_array_bytes(result) || (first->bytes && memcmp(first->data, first->copy, first->bytes)))
    return ad_trial_fail(s->trial, "forward must be repeatable, but a second call makes a different result");
  if (saved->bytes && memcmp(saved->data, saved->copy, saved->bytes))
    return ad_trial_fail(s->trial, "forward must be repeatable, but a second call saves different values");
  return AD_OK;
}

/* ---- promise: backward fills every gradient ---- */

/* Takes scratch memory, followed by a guard: bytes that the operation must not write. */
static ad_status take_guarded(const scene *s, unsigned char **guard) {
  size_t bytes = s->out->op->scratch ? s->out->op->scratch(s->out) : 0;
  AD_TRY(ad_tape_take(s->tape, bytes + GUARD, &s->out->scratch));
  *guard = (unsigned char *)s->out->scratch + bytes;
  memset(*guard, POISON, GUARD);
  return AD_OK;
}

static ad_status check_guard(const scene *s, const unsigned char *guard) {
  for (size_t i = 0; i < GUARD; i++)
    if (guard[i] != POISON)
      return ad_trial_fail(s->trial, "backward writes beyond the scratch memory that the ad_operation asks for");
  return AD_OK;
}

static ad_status call_backward(const scene *s, const ad_gradient_slot *slot) {
  unsigned char *guard;
  tape_mark mark = ad_tape_mark(s->tape);
  AD_TRY(take_guarded(s, &guard));
  ad_status status = s->out->op->backward(s->tape, s->out, slot);
  ad_status products = ad_gemm_status();
  if (!status) status = check_guard(s, guard);
  ad_tape_rewind(s->tape, mark);
  return status ? status : products;
}

/* Fills all gradients with a pattern, so that elements that stay unwritten can be counted. */
static void poison(scene *s) {
  for (size_t i = 0; i < s->count; i++) {
    s->slot[i].adds = 0;
    memset(s->slot[i].data, POISON, gradient_bytes(s, i));
  }
}

/* Returns the number of the gradient's elements that were not written. */
static size_t unwritten(const scene *s, size_t i) {
  size_t count = 0, n = ad_trial_numel(s->trial, i), bytes = gradient_bytes(s, i) / (n ? n : 1);
  static const unsigned char poisoned[sizeof(double)] = {POISON, POISON, POISON, POISON,
                                                         POISON, POISON, POISON, POISON};
  for (size_t k = 0; k < n; k++) count += !memcmp((const char *)s->slot[i].data + k * bytes, poisoned, bytes);
  return count;
}

/* Calls backward with all slots and keeps the gradients for comparison. */
static ad_status all_slots(scene *s) {
  poison(s);
  AD_TRY(call_backward(s, s->slot));
  AD_TRY(all_stayed(s, "backward"));
  for (size_t i = 0; i < s->count; i++) {
    size_t left = unwritten(s, i);
    if (!is_filled(s, i) && left != ad_trial_numel(s->trial, i))
      return ad_trial_fail(
          s->trial, "backward writes the gradient of operand %zu, for which the ad_operation declares none", i + 1);
    if (is_filled(s, i) && left)
      return ad_trial_fail(s->trial, "backward leaves %zu of %zu elements of the gradient of operand %zu unwritten",
                           left, ad_trial_numel(s->trial, i), i + 1);
    memcpy(s->all[i], s->slot[i].data, gradient_bytes(s, i));
  }
  return AD_OK;
}

static int is_same(const scene *s, size_t i) { return !memcmp(s->slot[i].data, s->all[i], gradient_bytes(s, i)); }

static ad_status all_are_same(const scene *s, const char *when) {
  for (size_t i = 0; i < s->count; i++)
    if (is_filled(s, i) && !is_same(s, i))
      return ad_trial_fail(s->trial, "backward %s leaves a different gradient of operand %zu", when, i + 1);
  return AD_OK;
}

static ad_status called_again(scene *s) {
  poison(s);
  AD_TRY(call_backward(s, s->slot));
  return all_are_same(s, "must be repeatable, but a second call");
}

/* ---- promise: backward adds to what an operand's gradient has already ---- */

/* Returns the value that an element of a gradient has before backward adds to it. */
static double base_of(const scene *s, size_t i, size_t k) {
  return ad_random_normal(s->trial->given.seed, 3000 + i, k);
}

static ad_status adds_to_operand(const scene *s, size_t i) {
  const double *sum = s->slot[i].data, *gradient = s->all[i];
  for (size_t k = 0; k < ad_trial_numel(s->trial, i); k++) {
    double wanted = base_of(s, i, k) + gradient[k], error = sum[k] - wanted;
    if (error <= 1e-12 * (1 + fabs(gradient[k])) && error >= -1e-12 * (1 + fabs(gradient[k]))) continue;
    return ad_trial_fail(s->trial,
                         "backward does not add to the gradient where `adds` of the slot is set: element %zu of "
                         "operand %zu is %g, not %g",
                         k, i + 1, sum[k], wanted);
  }
  return AD_OK;
}

static ad_status adds(scene *s) {
  for (size_t i = 0; i < s->count; i++) {
    s->slot[i].adds = 1;
    for (size_t k = 0; k < ad_trial_numel(s->trial, i); k++) ((double *)s->slot[i].data)[k] = base_of(s, i, k);
  }
  AD_TRY(call_backward(s, s->slot));
  for (size_t i = 0; i < s->count; i++)
    if (is_filled(s, i)) AD_TRY(adds_to_operand(s, i));
  return AD_OK;
}

/* ---- promises: the record's fields `unread` and `passes_gradient_on` ---- */

/* Overwrites the operands that backward promises not to read, and checks that the gradients stay the same. */
static ad_status unread_are_unread(scene *s) {
  for (size_t i = 0; i < s->count; i++) {
    const ad_array *operand = &s->out->operand[i]->array;
    int is_result = operand->data == s->out->array.data;
    if (!(s->out->op->unread >> i & 1) || is_result) continue;
    memset(operand->data, POISON, ad_array_bytes(operand));
  }
  poison(s);
  ad_status status = call_backward(s, s->slot);
  for (size_t i = 0; i < s->count; i++)
    memcpy(s->out->operand[i]->array.data, s->kept[3 + i].copy, s->kept[3 + i].bytes);
  AD_TRY(status);
  return all_are_same(s, "reads an operand that the ad_operation declares `unread`: with that operand overwritten, it");
}

/* Lets operand 0's gradient have the memory of the arriving gradient, as passes_gradient_on allows. */
static ad_status passes_gradient_on(scene *s) {
  if (!s->out->op->passes_gradient_on || !is_filled(s, 0)) return AD_OK;
  void *own = s->slot[0].data;
  poison(s);
  memcpy(own, s->out->grad.data, gradient_bytes(s, 0));
  void *arrived = s->out->grad.data;
  s->out->grad.data = own;
  ad_status status = call_backward(s, s->slot);
  s->out->grad.data = arrived;
  AD_TRY(status);
  return all_are_same(s, "may write over the incoming gradient, as `passes_gradient_on` says, but then");
}

/* ---- promise: backward computes the gradients of some operands only ---- */

enum { BROKE_PROMISE = 2 };

/* Prints "the slot of operand 2" or "the slots of operands 1, 3". */
static const char *slots_of(const scene *s, uint64_t set, char *buffer, size_t size) {
  int several = (set & (set - 1)) != 0, reported = 0;
  ad_text text = ad_text_on(buffer, size);
  ad_text_add(&text, several ? "the slots of operands " : "the slot of operand ");
  for (size_t i = 0; i < s->count; i++)
    if (set >> i & 1) ad_text_add(&text, "%s%zu", reported++ ? ", " : "", i + 1);
  return buffer;
}

/* Overwrites the values that a call for this set of operands promises not to read. */
static void hide_unread(const scene *s, uint64_t set) {
  const ad_tensor *out = s->out;
  uint64_t unread = ad_operation_unread(out->op, set);
  int is_operand = out->array.data == out->operand[0]->array.data;
  for (size_t i = 0; i < s->count; i++) {
    const ad_array *operand = &out->operand[i]->array;
    if (unread >> i & 1 && ad_array_bytes(operand)) memset(operand->data, POISON, ad_array_bytes(operand));
  }
  if (ad_operation_is_linear(out->op) && !is_operand && ad_array_bytes(&out->array))
    memset(out->array.data, POISON, ad_array_bytes(&out->array));
}

/* Checks that gradients outside the set were not written. */
static ad_status others_are_untouched(const scene *s, uint64_t set) {
  char slots[96];
  for (size_t i = 0; i < s->count; i++)
    if (!(set >> i & 1) && unwritten(s, i) != ad_trial_numel(s->trial, i))
      return ad_trial_fail(s->trial, "backward with %s alone writes the gradient of operand %zu",
                           slots_of(s, set, slots, sizeof slots), i + 1);
  return AD_OK;
}

static ad_status set_is_same(const scene *s, uint64_t set, const char *when) {
  for (size_t i = 0; i < s->count; i++)
    if (set >> i & 1 && !is_same(s, i))
      return ad_trial_fail(s->trial, "backward leaves a different gradient of operand %zu %s", i + 1, when);
  return AD_OK;
}

/* Calls backward for a set of operands and compares their gradients. Sets *is_promise to 1 if a failure is a broken
 * promise, to 0 if backward itself returned an error. */
static ad_status judge_set(const scene *s, uint64_t set, const ad_gradient_slot *slot, int *is_promise) {
  *is_promise = 0;
  if (s->hides) hide_unread(s, set);
  AD_TRY(call_backward(s, slot));
  *is_promise = 1;
  if (s->hides)
    return set_is_same(
        s, set, "where the other slots are NULL and the values that a linear operation does not read are overwritten");
  AD_TRY(all_stayed(s, "backward"));
  AD_TRY(others_are_untouched(s, set));
  return set_is_same(s, set, "where the other slots are NULL");
}

/* Judges a set in this child process, in which backward may crash: with default signals, no core dump and no output. */
static void set_in_child(const scene *s, uint64_t set, const ad_gradient_slot *slot) {
  static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
  int is_promise;
  for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) signal(fatal[i], SIG_DFL);
  setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
  ad_status status = judge_set(s, set, slot, &is_promise);
  if (status) memcpy(s->error_text, ad_last_error(), strlen(ad_last_error()) + 1);
  _exit(status ? is_promise ? BROKE_PROMISE : 1 : 0);
}

/* Turns the child's exit status into a status. A child that neither finished nor left an error message was killed by
 * the call. */
static ad_status judge_end(const scene *s, uint64_t set, int end) {
  char slots[96];
  slots_of(s, set, slots, sizeof slots);
  if (WIFSIGNALED(end) || (WEXITSTATUS(end) && !s->error_text[0]))
    return ad_trial_fail(
        s->trial, "backward does not skip an operand whose slot is NULL: with %s alone it ends the process with %s %d",
        slots, WIFSIGNALED(end) ? "signal" : "exit status", WIFSIGNALED(end) ? WTERMSIG(end) : WEXITSTATUS(end));
  if (WEXITSTATUS(end) == BROKE_PROMISE) return ad_fail(AD_INVALID, "%s", s->error_text);
  if (WEXITSTATUS(end))
    return ad_trial_fail(s->trial, "backward fails where only %s has memory: %s", slots, s->error_text);
  return AD_OK;
}

/* Judges a set of operands in a child process. */
static ad_status set_alone(const scene *s, uint64_t set) {
  ad_gradient_slot slot[AD_OPERANDS_MAX] = {{.data = NULL}};
  for (size_t i = 0; i < s->count; i++)
    if (set >> i & 1) slot[i] = s->slot[i];
  int end;
  pid_t child = fork();
  if (child < 0) return ad_fail(AD_SYSTEM, "ad_check_operation: a child process cannot be started; raise ulimit -u");
  if (!child) set_in_child(s, set, slot);
  if (waitpid(child, &end, 0) != child)
    return ad_fail(AD_SYSTEM, "ad_check_operation: waiting for the child process failed; run the check again");
  return judge_end(s, set, end);
}

static ad_status try_set(scene *s, uint64_t set) {
  if (!set) return AD_OK;
  poison(s);
  return set_alone(s, set);
}

/* Judges every set of operands if at most FEW operands have gradients; else each operand alone, and all operands but
 * one. */
static ad_status each_set_alone(scene *s) {
  enum { FEW = 4 };
  uint64_t all = 0;
  for (size_t i = 0; i < s->count; i++) all |= (uint64_t)is_filled(s, i) << i;
  if (__builtin_popcountll(all) <= FEW) {
    for (uint64_t set = all & (~all + 1); set; set = (set - all) & all) AD_TRY(try_set(s, set));
    return AD_OK;
  }
  for (size_t i = 0; i < s->count; i++) AD_TRY(try_set(s, all & UINT64_C(1) << i));
  for (size_t i = 0; i < s->count; i++)
    if (is_filled(s, i)) AD_TRY(try_set(s, all & ~(UINT64_C(1) << i)));
  return AD_OK;
}

/* ---- setting up the operation ---- */

/* Takes memory that a child process shares with this one. */
static ad_status take_shared(size_t bytes, void **out) {
  void *taken = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (taken == MAP_FAILED) return ad_fail(AD_MEMORY, "ad_check_operation: no memory for a gradient");
  *out = taken;
  return AD_OK;
}

static ad_status take_gradients(scene *s) {
  AD_TRY(take_shared(AD_MESSAGE_MAX, (void **)&s->error_text));
  for (size_t i = 0; i < s->count; i++) {
    s->slot[i].dtype = s->out->operand[i]->array.dtype;
    AD_TRY(take_shared(gradient_bytes(s, i), &s->slot[i].data));
    AD_TRY(ad_tape_take(s->tape, gradient_bytes(s, i), &s->all[i]));
  }
  return AD_OK;
}

static void give_gradients(const scene *s) {
  if (s->error_text) munmap(s->error_text, AD_MESSAGE_MAX);
  for (size_t i = 0; i < s->count; i++)
    if (s->slot[i].data) munmap(s->slot[i].data, gradient_bytes(s, i));
}

static ad_status take_arriving(const scene *s) {
  ad_tensor *out = s->out;
  ad_layout dual = ad_layout_dual(&out->array.layout);
  out->grad = ad_array_describe(s->trial->alone, out->grad_dtype, &out->array.shape, &dual);
  return ad_trial_part(s->trial, s->tape, s->trial->arriving, 0, &out->grad);
}

static ad_status linear_promise(scene *s) {
  AD_TRY(all_slots(s));
  s->hides = 1;
  return each_set_alone(s);
}

static ad_status all_promises(scene *s) {
  AD_TRY(forward_is_repeatable(s));
  AD_TRY(all_slots(s));
  AD_TRY(called_again(s));
  AD_TRY(adds(s));
  AD_TRY(unread_are_unread(s));
  AD_TRY(passes_gradient_on(s));
  return each_set_alone(s);
}

static ad_status prepare(scene *s) {
  AD_TRY(take_arriving(s));
  AD_TRY(take_gradients(s));
  return keep_all(s);
}

static ad_status on_tape(scene *s, ad_status (*promises)(scene *s)) {
  ad_tried tried;
  AD_TRY(ad_trial_record(s->trial, s->tape, NULL, &tried));
  AD_TRY(ad_tape_status(s->tape));
  s->out = tried.out;
  ad_status status = prepare(s);
  if (!status) status = promises(s);
  give_gradients(s);
  return status;
}

static ad_status hold(const ad_trial *trial, ad_status (*promises)(scene *s)) {
  scene s = {.trial = trial, .count = trial->given.count, .fills = ad_operation_fills(trial->op) & ~trial->op->indices};
  AD_TRY(ad_trial_tape(trial, AD_F64, &s.tape));
  ad_status status = on_tape(&s, promises);
  ad_tape_destroy(s.tape);
  return status;
}

ad_status ad_trial_promises(const ad_trial *trial) { return hold(trial, all_promises); }

ad_status ad_trial_linear(const ad_trial *trial) {
  return ad_operation_is_linear(trial->op) ? hold(trial, linear_promise) : AD_OK;
}
