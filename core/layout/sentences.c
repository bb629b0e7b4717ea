/* The messages of law 1. For every kind of conflict between operands they suggest a repair: which operand should
 * change, and to which type. The transitions that lead to this type come from the transition table. */
#include "layout/sentences.h"
#include "base/error.h"
#include "base/text.h"
#include "layout/transition.h"
#include "layout/type.h"

static const char *const reasons[AD_CONFLICT_COUNT] = {
#define REASON(code, why) [code] = why,
    AD_CONFLICT_LIST(REASON)
#undef REASON
};

/* A repair: the operand `side` changes to the type `to`. */
typedef struct repair {
  const ad_side *side;
  ad_type to;
} repair;

/* Returns the operand of the conflict that has a type of this kind. */
static const ad_side *side_of(const ad_conflict *conflict, ad_type kind) {
  return ad_type_kind(conflict->side[0].type) == kind ? &conflict->side[0] : &conflict->side[1];
}

static const ad_side *other_side(const ad_conflict *conflict, const ad_side *side) {
  return side == &conflict->side[0] ? &conflict->side[1] : &conflict->side[0];
}

/* Repair of an I operand: convert it to the other operand's type, R or the same S(d). If the other operand is P and the
 * operation is no product, reduce the P operand to I instead. */
static repair repair_invariant(const ad_conflict *conflict) {
  const ad_side *invariant = side_of(conflict, AD_I), *other = other_side(conflict, invariant);
  if (other->type == AD_P && conflict->linearity != AD_MULTILINEAR) return (repair){other, AD_I};
  return (repair){invariant, invariant->like_other};
}

/* Repair of P with V: in a sum, declare the V operand an addend (P); otherwise reduce the P operand to R. */
static repair repair_partial_with_varying(const ad_conflict *conflict) {
  if (conflict->linearity == AD_ADDITIVE) return (repair){side_of(conflict, AD_V), AD_P};
  return (repair){side_of(conflict, AD_P), AD_R};
}

/* Repair of V with S(d): if the V operand has the sharded dimension, its full size is on every rank, so gather the
 * other operand; otherwise declare the sharded operand V. */
static repair repair_varying_with_sharded(const ad_conflict *conflict) {
  const ad_side *sharded = side_of(conflict, AD_S(0)), *varying = other_side(conflict, sharded);
  return (repair){sharded, ad_type_is_sharded(varying->like_other) ? AD_R : AD_V};
}

static repair repair_full(const ad_conflict *conflict) {
  const ad_side *full = other_side(conflict, side_of(conflict, AD_S(0)));
  return (repair){full, full->like_other};
}

/* Returns the repair to suggest for a conflict. */
static repair repair_of(const ad_conflict *conflict) {
  const ad_side *first = &conflict->side[0], *last = &conflict->side[conflict->sides - 1];
  switch (conflict->kind) {
    case AD_INVARIANT_MIXED:
      return repair_invariant(conflict);
    case AD_PARTIAL_WITH_SHARDED:
      return (repair){side_of(conflict, AD_P), side_of(conflict, AD_P)->like_other};
    case AD_PARTIAL_WITH_VARYING:
      return repair_partial_with_varying(conflict);
    case AD_VARYING_WITH_SHARDED:
      return repair_varying_with_sharded(conflict);
    case AD_PARTIAL_PLUS_FULL:
      return (repair){other_side(conflict, side_of(conflict, AD_P)), AD_P};
    case AD_SHARDED_AND_FULL:
      return repair_full(conflict);
    case AD_SUM_PLUS_FULL:
      return (repair){side_of(conflict, AD_S(0)), AD_R};
    case AD_TWO_DIMENSIONS:
    case AD_SHARDED_DIFFERENTLY:
      return (repair){last, last->like_other};
    case AD_PARTIAL_TIMES_PARTIAL:
      return (repair){last, AD_R};
    default:
      return (repair){first, AD_R};
  }
}

static void print_repair(const ad_conflict *conflict, ad_text *text) {
  repair r = repair_of(conflict);
  char from_text[AD_TYPE_TEXT_MAX], to_text[AD_TYPE_TEXT_MAX];
  ad_way way = ad_way_find(r.side->type, r.to);
  for (int i = 0; i < way.count; i++)
    ad_text_add(text, "%s%s operand %zu %s->%s", i ? ", then " : "", ad_move_name(way.move[i]), r.side->operand + 1,
                ad_type_print(way.from[i], from_text, sizeof from_text),
                ad_type_print(way.to[i], to_text, sizeof to_text));
}

ad_status ad_conflict_fail(const ad_conflict *conflict, const char *name, const char *site) {
  char type[AD_TYPE_TEXT_MAX], sentence[512];
  const char *why = reasons[conflict->kind];
  ad_text text = ad_text_on(sentence, sizeof sentence);
  ad_text_add(&text, "operand %zu is %s on `%s`", conflict->side[0].operand + 1,
              ad_type_print(conflict->side[0].type, type, sizeof type), ad_axis_name(conflict->axis));
  if (conflict->sides == 2)
    ad_text_add(&text, ", operand %zu is %s", conflict->side[1].operand + 1,
                ad_type_print(conflict->side[1].type, type, sizeof type));
  ad_text_add(&text, "%s%s" AD_MAY_REPAIR, why[0] ? ", but " : "", why);
  if (conflict->kind == AD_SHARDING_ORDER)
    ad_text_add(&text, "shard operand %zu in the order of operand %zu", conflict->side[1].operand + 1,
                conflict->side[0].operand + 1);
  else
    print_repair(conflict, &text);
  return ad_fail(AD_TYPE, "%s: in `%s`, %s", site, name, sentence);
}
