/* Operations from outside the library: checks of a record before the tape relies on it, and the functions through
 * which a record reads its operands and its result. */
#include <ctype.h>
#include <string.h>
#include "array/array.h"
#include "base/options.h"
#include "tensor/tape.h"

/* ---- checking the record ---- */

/* An attempt to record an operation, with the names for its error messages. */
typedef struct attempt {
  const ad_operation *op;
  size_t count; /* number of operands */
  const char *site;
} attempt;

static ad_status fail_missing(const attempt *of, const char *what) {
  return ad_fail(AD_INVALID, "%s: the ad_operation of `%s` has no %s", of->site, of->op->name, what);
}

static ad_status wrong_dims(const attempt *of, const char *why) {
  return ad_fail(AD_INVALID,
                 "%s: `dims` of `%s` is \"%s\", but %s. Give a term of letters, with or without \"...\" before them, "
                 "for each operand, then \"->\" and the term of the result, as in \"...k,kn->...n\"",
                 of->site, of->op->name, of->op->dims, why);
}

/* Reads the letters of one term and marks them in `seen`. Returns the end of the term. */
static const char *read_term(const char *at, char seen[128]) {
  if (!strncmp(at, "...", 3)) at += 3;
  for (; isascii((unsigned char)*at) && isalpha((unsigned char)*at); at++) seen[(unsigned char)*at] = 1;
  return at;
}

static ad_status check_result_term(const attempt *of, const char *at, const char seen[128]) {
  char of_result[128] = {0};
  if (*read_term(at, of_result)) return wrong_dims(of, "the term of the result has characters that are not letters");
  for (int letter = 0; letter < 128; letter++)
    if (of_result[letter] && !seen[letter]) return wrong_dims(of, "the result has a letter that no operand has");
  return AD_OK;
}

static ad_status check_dims(const attempt *of) {
  char seen[128] = {0};
  const char *at = of->op->dims;
  size_t terms = 1;
  if (strlen(at) > AD_OPERANDS_MAX * (AD_DIMS_MAX + 1)) return wrong_dims(of, "the text is too long");
  for (at = read_term(at, seen); *at == ','; terms++) at = read_term(at + 1, seen);
  if (strncmp(at, "->", 2)) return wrong_dims(of, "\"->\" is missing after the terms of the operands");
  if (terms != of->count) return wrong_dims(of, "the number of terms is not the number of operands");
  return check_result_term(of, at + 2, seen);
}

static ad_status check_record(const attempt *of, const void *own) {
  const ad_operation *op = of->op;
  if (!op->name) return ad_fail(AD_INVALID, "%s: the ad_operation has no name; set `name`", of->site);
  if (!op->forward) return fail_missing(of, "`forward`; set the function");
  if (!op->backward) return fail_missing(of, "`backward`; set the function");
  if (!op->dims && !op->describe) return fail_missing(of, "`dims` and no `describe`; set one of the two");
  if (op->own_size && !own) return fail_missing(of, "struct `own`, although own_size is not 0; give the struct");
  if (!of->count || of->count > AD_OPERANDS_MAX)
    return ad_fail(AD_INVALID,
                   "%s: `%s` got %zu operands, but an operation can have 1 to %d; give fewer, or at least one",
                   of->site, op->name, of->count, AD_OPERANDS_MAX);
  return op->dims ? check_dims(of) : AD_OK;
}

/* Sets *out to the record with all fields of this library's version: the given record or, if it was compiled with an
 * older header, a completed copy in the tape's memory. */
static ad_status complete(ad_tape *tape, const ad_operation *given, const ad_operation **out, const char *site) {
  *out = given;
  if (given->size == sizeof *given) return AD_OK;
  ad_operation *longer = ad_arena_take(tape->own.arena, sizeof *longer);
  if (!longer) return AD_MEMORY;
  ad_status status = ad_options_take(longer, sizeof *longer, given, "ad_operation");
  *out = longer;
  return status ? ad_fail_in(status, "%s", site) : AD_OK;
}

ad_tensor *ad_operation_apply_at(ad_tape *tape, const ad_operation *operation, ad_tensor *const *operands, size_t count,
                                 const void *own, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, "operation");
  if (ad_tape_failed(tape)) return &tape->dead;
  if (!operation || !operands)
    return ad_tape_fail(tape, ad_fail(AD_INVALID, "%s: an operation needs a %s, but got NULL", site,
                                      operation ? "list of operands" : "record (ad_operation)"));
  ad_status status = complete(tape, operation, &operation, site);
  if (!status) status = check_record(&(attempt){operation, count, site}, own);
  return status ? ad_tape_fail(tape, status) : ad_tape_apply(tape, operation, operands, (int)count, own, site);
}

/* ---- what the record's functions may call ---- */

size_t ad_operand_count(const ad_tensor *out) { return (size_t)out->operand_count; }

const ad_array *ad_operand(const ad_tensor *out, size_t i) {
  return ad_has(i, (size_t)out->operand_count, __func__, "operand") ? &out->operand[i]->array : NULL;
}

const ad_array *ad_result_grad(const ad_tensor *out) { return &out->grad; }
const void *ad_operation_own(const ad_tensor *out) { return out->own; }
void *ad_operation_saved(const ad_tensor *out) { return out->saved; }
void *ad_operation_scratch(const ad_tensor *out) { return out->scratch; }
const char *ad_tensor_site(const ad_tensor *out) { return out->site ? out->site : AD_NO_SITE; }

void ad_result_set(ad_tensor *out, ad_dtype dtype, const ad_shape *shape, const ad_layout *layout) {
  void *data = out->array.data;
  out->array = ad_array_describe(out->tape->comm, dtype, shape, layout);
  out->array.data = data;
}

void ad_result_set_data(ad_tensor *out, void *data) { out->array.data = data; }

void ad_slot_put(const ad_gradient_slot *slot, size_t i, double share) {
  if (!slot->data) return;
  ad_set_element(slot->dtype, slot->data, i, share + (slot->adds ? ad_element(slot->dtype, slot->data, i) : 0));
}

void ad_slot_put_all(const ad_gradient_slot *slot, size_t first, const void *shares, ad_dtype dtype, size_t n) {
  if (!slot->data) return;
  void *to = (char *)slot->data + first * ad_dtype_size(slot->dtype);
  if (slot->adds)
    ad_accumulate(to, slot->dtype, shares, dtype, 1, n);
  else
    ad_cast(to, slot->dtype, shares, dtype, n);
}
