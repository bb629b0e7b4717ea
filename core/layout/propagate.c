/* Law 3: computes the type of a local operation's result, axis by axis, from the types of its operands. sentences.c
 * writes the error messages. */
#include "base/error.h"
#include "base/options.h"
#include "layout/rule.h"
#include "layout/sentences.h"
#include "layout/type.h"
#include "mesh/object.h"
#include "mesh/mesh.h"

/* The arguments of ad_layout_propagate. */
typedef struct operation {
  const ad_rule *rule;
  const ad_layout *const *operands;
  const int *constant;
  size_t count;
  const char *site;
} operation;

static ad_type type_of(const operation *op, size_t operand, ad_axis axis) { return op->operands[operand]->type[axis]; }

/* Returns 1 if the operand is R or I and carries no gradient. It may then be used as R or as I, because these differ
 * only in their gradients. */
static int is_neutral(const operation *op, size_t operand, ad_axis axis) {
  ad_type type = type_of(op, operand, axis);
  return op->constant && op->constant[operand] && (type == AD_R || type == AD_I);
}

/* Returns the letter of the dimension along which an operand is sharded on an axis; 0 if it is not sharded. */
static char sharded_letter(const operation *op, size_t operand, ad_axis axis) {
  int dim = ad_type_dim(type_of(op, operand, axis));
  return dim < 0 ? 0 : ad_rule_operand(op->rule, operand).data[dim];
}

/* Describes an operand of a conflict, and how it would have to be sharded to fit the other operand. */
static ad_side side_of(const operation *op, size_t operand, size_t other, ad_axis axis) {
  char letter = sharded_letter(op, other, axis);
  int dim = letter ? ad_letters_find(ad_rule_operand(op->rule, operand), letter) : -1;
  ad_type like_other = dim < 0 ? AD_R : ad_type_sharded_like(type_of(op, other, axis), dim);
  return (ad_side){operand, type_of(op, operand, axis), like_other};
}

/* Fails with a conflict between operands a and b; if a is b, with a conflict of this operand alone. */
static ad_status fail(const operation *op, ad_conflict_kind kind, ad_axis axis, size_t a, size_t b) {
  size_t first = a < b ? a : b, second = a < b ? b : a;
  ad_conflict conflict = {.kind = kind, .axis = axis, .linearity = op->rule->linearity, .sides = a == b ? 1 : 2};
  conflict.side[0] = side_of(op, first, second, axis);
  conflict.side[1] = side_of(op, second, first, axis);
  return ad_conflict_fail(&conflict, op->rule->name, op->site);
}

/* Returns the first operand of this type for which is_neutral returns 0; op->count if there is none. */
static size_t find_type(const operation *op, ad_axis axis, ad_type type) {
  size_t i = 0;
  while (i < op->count && (type_of(op, i, axis) != type || is_neutral(op, i, axis))) i++;
  return i;
}

/* Returns the first operand that is sharded on this axis; op->count if there is none. */
static size_t find_sharded(const operation *op, ad_axis axis) {
  size_t i = 0;
  while (i < op->count && !ad_type_is_sharded(type_of(op, i, axis))) i++;
  return i;
}

/* Finds the result's type if operand `lead` is I: all operands must then be I, or neutral (see is_neutral). */
static ad_status meet_invariant(const operation *op, ad_axis axis, size_t lead, ad_type *out) {
  for (size_t i = 0; i < op->count; i++)
    if (!is_neutral(op, i, axis) && type_of(op, i, axis) != AD_I) return fail(op, AD_INVARIANT_MIXED, axis, lead, i);
  *out = AD_I;
  return AD_OK;
}

/* Finds the result's type if operand `lead` is V: no operand may then be P or sharded. */
static ad_status meet_varying(const operation *op, ad_axis axis, size_t lead, ad_type *out) {
  for (size_t i = 0; i < op->count; i++) {
    ad_type type = type_of(op, i, axis);
    if (type == AD_P) return fail(op, AD_PARTIAL_WITH_VARYING, axis, lead, i);
    if (ad_type_is_sharded(type)) return fail(op, AD_VARYING_WITH_SHARDED, axis, lead, i);
  }
  *out = AD_V;
  return AD_OK;
}

/* Finds the result's type if operand `lead` is P; fails in the cases that sentences.h lists for P. */
static ad_status meet_partial(const operation *op, ad_axis axis, size_t lead, ad_type *out) {
  if (op->rule->linearity == AD_NONLINEAR) return fail(op, AD_PARTIAL_NONLINEAR, axis, lead, lead);
  for (size_t i = 0; i < op->count; i++) {
    ad_type type = type_of(op, i, axis);
    if (ad_type_is_sharded(type)) return fail(op, AD_PARTIAL_WITH_SHARDED, axis, lead, i);
    if (op->rule->linearity == AD_ADDITIVE && type != AD_P) return fail(op, AD_PARTIAL_PLUS_FULL, axis, lead, i);
    if (op->rule->linearity == AD_MULTILINEAR && type == AD_P && i != lead)
      return fail(op, AD_PARTIAL_TIMES_PARTIAL, axis, lead, i);
  }
  *out = AD_P;
  return AD_OK;
}

/* Checks operand i if operand `lead` is sharded. `kept` is 1 if the result has the sharded dimension. */
static ad_status meet_beside_sharded(const operation *op, ad_axis axis, size_t lead, size_t i, int kept) {
  char letter = sharded_letter(op, lead, axis), own = sharded_letter(op, i, axis);
  ad_type lead_type = type_of(op, lead, axis), type = type_of(op, i, axis);
  if (own) {
    if (own != letter) return fail(op, AD_TWO_DIMENSIONS, axis, lead, i);
    if (ad_type_is_zigzag(type) != ad_type_is_zigzag(lead_type)) return fail(op, AD_SHARDED_DIFFERENTLY, axis, lead, i);
    if (op->operands[i]->depth[axis] != op->operands[lead]->depth[axis])
      return fail(op, AD_SHARDING_ORDER, axis, lead, i);
    return AD_OK;
  }
  if (ad_letters_find(ad_rule_operand(op->rule, i), letter) >= 0) return fail(op, AD_SHARDED_AND_FULL, axis, lead, i);
  if (op->rule->linearity == AD_ADDITIVE && !kept) return fail(op, AD_SUM_PLUS_FULL, axis, lead, i);
  return AD_OK;
}

/* Returns 1 if by the rule's `full` this dimension must not be sharded, else 0. */
static int is_full(const ad_rule *rule, char letter) {
  for (const char *c = rule->full ? rule->full : ""; *c; c++)
    if (*c == letter) return 1;
  return 0;
}

/* Finds the result's type if operand `lead` is sharded: S if the result has the sharded dimension, P if the dimension
 * is summed. */
static ad_status meet_sharded(const operation *op, ad_axis axis, size_t lead, ad_type *out) {
  char letter = sharded_letter(op, lead, axis);
  int dim = ad_letters_find(ad_rule_result(op->rule), letter);
  if (is_full(op->rule, letter)) return fail(op, AD_SHARDED_ALONG_FULL, axis, lead, lead);
  for (size_t i = 0; i < op->count; i++)
    if (i != lead) AD_TRY(meet_beside_sharded(op, axis, lead, i, dim >= 0));
  *out = dim >= 0 ? ad_type_sharded_like(type_of(op, lead, axis), dim) : AD_P;
  return AD_OK;
}

/* Returns the result's type if all operands are R or neutral (see is_neutral). */
static ad_type meet_replicated(const operation *op, ad_axis axis) {
  for (size_t i = 0; i < op->count; i++)
    if (type_of(op, i, axis) == AD_R) return AD_R;
  return AD_I;
}

static int are_replicated(const operation *op, ad_axis axis) {
  for (size_t i = 0; i < op->count; i++)
    if (type_of(op, i, axis) != AD_R) return 0;
  return 1;
}

/* Finds the result's type on one axis. */
static ad_status meet_on(const operation *op, ad_axis axis, ad_layout *out) {
  size_t lead;
  ad_type *type = &out->type[axis];
  if (are_replicated(op, axis)) return AD_OK;
  if ((lead = find_type(op, axis, AD_I)) < op->count) return meet_invariant(op, axis, lead, type);
  if ((lead = find_type(op, axis, AD_V)) < op->count) return meet_varying(op, axis, lead, type);
  if ((lead = find_type(op, axis, AD_P)) < op->count) return meet_partial(op, axis, lead, type);
  if ((lead = find_sharded(op, axis)) < op->count) {
    AD_TRY(meet_sharded(op, axis, lead, type));
    out->depth[axis] = ad_type_is_sharded(*type) ? op->operands[lead]->depth[axis] : 0;
    return AD_OK;
  }
  *type = meet_replicated(op, axis);
  return AD_OK;
}

/* Checks an operand's mesh and types, and that it is sharded only along dimensions that it has by the rule. */
static ad_status check_operand(const operation *op, size_t i) {
  char type[AD_TYPE_TEXT_MAX];
  int ndim = ad_rule_operand(op->rule, i).count;
  if (!ad_mesh_equal(op->operands[i]->mesh, op->operands[0]->mesh))
    return ad_fail(AD_TYPE,
                   "%s: in `%s`, operand 1 is on mesh \"%s\", but operand %zu is on mesh \"%s\"" AD_MAY_REPAIR
                   "change the view of one operand",
                   op->site, op->rule->name, ad_mesh_text(op->operands[0]->mesh), i + 1,
                   ad_mesh_text(op->operands[i]->mesh));
  for (int k = 0; k < AD_AXIS_COUNT; k++) {
    ad_axis axis = op->operands[i]->mesh->order[k];
    if (type_of(op, i, axis) <= AD_P) continue;
    if (!ad_type_is_known(type_of(op, i, axis)))
      return ad_fail(AD_TYPE,
                     "%s: in `%s`, operand %zu is %s on `%s`, but a type must be R, I, V, P or S(d); set one of these "
                     "in the operand's layout",
                     op->site, op->rule->name, i + 1, ad_type_print(type_of(op, i, axis), type, sizeof type),
                     ad_axis_name(axis));
    if (ad_type_dim(type_of(op, i, axis)) >= ndim)
      return ad_fail(AD_TYPE,
                     "%s: in `%s`, operand %zu is %s on `%s`, but this operand has only %d dimension%s in the rule "
                     "\"%s\"; shard one of these, numbered from 0",
                     op->site, op->rule->name, i + 1, ad_type_print(type_of(op, i, axis), type, sizeof type),
                     ad_axis_name(axis), ndim, ndim == 1 ? "" : "s", op->rule->dims);
  }
  return AD_OK;
}

ad_status ad_layout_propagate_at(const ad_rule *rule, const ad_layout *const *operands, const int *constant,
                                 size_t count, ad_layout *out, const char *site) {
  if (!site) site = AD_NO_SITE;
  ad_rule own;
  AD_NEED(rule, operands, out);
  AD_TRY(ad_options_take(&own, sizeof own, rule, "ad_rule"));
  rule = &own;
  AD_NEED(rule->name, rule->dims);
  for (size_t i = 0; i < count; i++) AD_NEED(operands[i]);
  for (size_t i = 0; i < count; i++) AD_NEED(operands[i]->mesh);
  operation op = {rule, operands, constant, count, site};
  AD_TRY(ad_rule_check(rule, count));
  for (size_t i = 0; i < count; i++) AD_TRY(check_operand(&op, i));
  ad_layout result = ad_layout_all(operands[0]->mesh, AD_R);
  /* in mesh order, so that an error names an axis of the mesh string if possible */
  for (int i = 0; i < AD_AXIS_COUNT; i++) AD_TRY(meet_on(&op, result.mesh->order[i], &result));
  *out = result;
  return AD_OK;
}
