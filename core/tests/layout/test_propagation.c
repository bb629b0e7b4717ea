/* Tests how types propagate through local operations (law 3): which operand types may meet, the result's type, and the
 * error messages. The last test compares with arithmetic: each allowed combination and its result type must be true of
 * numbers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "addend/layout.h"
#include "layout/sentences.h"
#include "says.h"
#include "layout/type.h"

static ad_mesh *mesh;

static int make_mesh(void **state) { return ad_mesh_create("dp_shard=3 cp=1 tp=2", &mesh); }
static int drop_mesh(void **state) {
  ad_mesh_destroy(mesh);
  return 0;
}

enum { PRODUCT = AD_MULTILINEAR, SUM = AD_ADDITIVE, CURVE = AD_NONLINEAR };

typedef struct meeting {
  const char *dims;
  int linearity;
  const char *first, *second; /* operand layouts; second NULL: one operand */
  const char *result;         /* the result's layout; NULL if the operands are refused */
  const char *full;
  const char *constant; /* "01": the second operand carries no gradient */
  const char *facts[8]; /* of the refusal */
} meeting;

static ad_layout read_layout(const char *text) {
  ad_layout layout = ad_layout_all(mesh, AD_R);
  if (text) assert_int_equal(ad_layout_parse(mesh, text, &layout), AD_OK);
  return layout;
}

static ad_status meet(const meeting *m, ad_layout *out) {
  ad_layout first = read_layout(m->first), second = read_layout(m->second);
  const ad_layout *operands[] = {&first, &second};
  int constant[] = {m->constant && m->constant[0] == '1', m->constant && m->constant[1] == '1'};
  ad_rule rule = {sizeof rule, "multiply", m->dims, (ad_linearity)m->linearity, m->full};
  return ad_layout_propagate_at(&rule, operands, m->constant ? constant : NULL, m->second ? 2 : 1, out, "moe.c:88");
}

static void check_allowed(const meeting *meetings, size_t count) {
  for (size_t i = 0; i < count; i++) {
    ad_layout wanted = read_layout(meetings[i].result), out;
    if (meet(&meetings[i], &out)) assert_string_equal(ad_last_error(), meetings[i].result);
    char text[2][128];
    assert_string_equal(ad_layout_print(&out, text[0], sizeof text[0]),
                        ad_layout_print(&wanted, text[1], sizeof text[1]));
    assert_true(ad_layout_equal(&out, &wanted));
  }
}

static void check_refused(const meeting *meetings, size_t count) {
  for (size_t i = 0; i < count; i++) {
    ad_layout out = ad_layout_all(mesh, AD_V), before = out;
    assert_int_equal(meet(&meetings[i], &out), AD_TYPE);
    assert_says_all(meetings[i].facts);
    assert_says("moe.c:88");
    assert_true(ad_layout_equal(&out, &before));
  }
}
#define ALLOWED(meetings) check_allowed(meetings, sizeof meetings / sizeof meetings[0])
#define REFUSED(meetings) check_refused(meetings, sizeof meetings / sizeof meetings[0])

static void equal_types_meet(void **state) {
  static const meeting meetings[] = {
      {.dims = "bn,bn->bn", SUM, "dp=R tp=I", "dp=R tp=I", "dp=R tp=I"},
      {.dims = "bn,bn->bn", PRODUCT, "dp=V tp=R", "dp=V tp=R", "dp=V tp=R"},
      {.dims = "bn,bn->bn", CURVE, "dp=V tp=I", "dp=R tp=I", "dp=V tp=I"},
      {.dims = "bn,bn->bn", SUM, "dp=P tp=P", "dp=P tp=P", "dp=P tp=P"},
      {.dims = "bn,bn->bn", CURVE, "dp=S0 tp=S1", "dp=S0 tp=S1", "dp=S0 tp=S1"},
      {.dims = "bn->b", SUM, "dp=V tp=R", NULL, "dp=V tp=R"},
      {.dims = "->", CURVE, "dp=V tp=R", NULL, "dp=V tp=R"},
  };
  ALLOWED(meetings);
}

static void a_kept_sharded_dimension_stays_sharded_in_the_result(void **state) {
  static const meeting meetings[] = {
      {.dims = "bk,kn->bn", PRODUCT, "dp=S0 tp=R", "dp=R tp=S1", "dp=S0 tp=S1"},
      {.dims = "bsk,kn->snb", PRODUCT, "dp=S0 tp=S1z", "dp=R tp=R", "dp=S2 tp=S0z"},
      {.dims = "bn,n->bn", SUM, "dp=S0 tp=S1", "dp=R tp=S0", "dp=S0 tp=S1"},
      {.dims = "bn,b->n", PRODUCT, "tp=S1 dp=S1", "dp=R tp=R", "tp=S0 dp=S0"},
      {.dims = "nb,bn->bn", PRODUCT, "dp=S1 tp=S1", "dp=S0 tp=S0", "dp=S0 tp=S0"},
  };
  ALLOWED(meetings);
}

static void a_contracted_sharded_dimension_is_a_partial(void **state) {
  static const meeting meetings[] = {
      {.dims = "bk,kn->bn", PRODUCT, "dp=S0 tp=S1", "dp=R tp=S0", "dp=S0 tp=P"},
      {.dims = "bk,kn->bn", PRODUCT, "tp=S1 dp=S1", "tp=S0 dp=S0", "dp=P tp=P"},
      {.dims = "bn->b", SUM, "dp=S1 tp=S0", NULL, "dp=P tp=S0"},
      {.dims = "bn->", CURVE, "dp=S1 tp=R", NULL, "dp=P tp=R"},
      {.dims = "bk,n->bn", PRODUCT, "dp=S1 tp=R", "dp=R tp=R", "dp=P tp=R"},
  };
  ALLOWED(meetings);
}

static void a_linear_operation_keeps_a_partial(void **state) {
  static const meeting meetings[] = {
      {.dims = "bk,kn->bn", PRODUCT, "dp=P tp=R", "dp=R tp=P", "dp=P tp=P"},
      {.dims = "bn->nb", PRODUCT, "dp=P tp=R", NULL, "dp=P tp=R"},
      {.dims = "bn->b", SUM, "dp=P tp=R", NULL, "dp=P tp=R"},
  };
  ALLOWED(meetings);
}

static void a_constant_is_replicated_or_invariant_as_needed(void **state) {
  static const meeting meetings[] = {
      {.dims = "bn,bn->bn", PRODUCT, "dp=I tp=R", "dp=R tp=I", "dp=I tp=R", NULL, "01"},
      {.dims = "bn,bn->bn", PRODUCT, "dp=V tp=P", "dp=I tp=I", "dp=V tp=P", NULL, "01"},
      {.dims = "bn,n->bn", SUM, "dp=S0 tp=R", "dp=I tp=R", "dp=S0 tp=R", NULL, "01"},
      {.dims = "bk,kn->bn", PRODUCT, "dp=R tp=I", "dp=R tp=R", "dp=R tp=R", NULL, "11"},
      {.dims = "bn,bn->bn", CURVE, "dp=I tp=I", "dp=I tp=R", "dp=I tp=R", NULL, "11"},
  };
  static const meeting wrong[] = {
      {.dims = "bn,bn->bn",
       SUM,
       "dp=P tp=R",
       "dp=R tp=R",
       NULL,
       NULL,
       "01",
       .facts = {"dp_shard", "operand 1", "P", "operand 2", "R"}},
      {.dims = "bn,bn->bn", SUM, "dp=P tp=R", "dp=I tp=R", NULL, NULL, "01", .facts = {"operand 2", "I->R", "R->P"}},
      {.dims = "bn,bn->bn", PRODUCT, "dp=S0 tp=R", "dp=I tp=R", NULL, NULL, "01", .facts = {"operand 2", "I->S(0)"}},
      {.dims = "bn,bn->bn",
       PRODUCT,
       "dp=I tp=R",
       "dp=S0 tp=R",
       NULL,
       NULL,
       "01",
       .facts = {"dp_shard", "operand 1", "I", "operand 2", "S(0)"}},
  };
  ALLOWED(meetings);
  REFUSED(wrong);
}

static void an_invariant_meets_only_invariants(void **state) {
  static const meeting wrong[] = {
      {.dims = "te,te->te",
       PRODUCT,
       "dp=R tp=I",
       "dp=R tp=S0",
       .facts = {"tp", "moe.c:88", "operand 1", "operand 2", "I->S(0)"}},
      {.dims = "te,et->te", PRODUCT, "dp=R tp=I", "dp=R tp=S0z", .facts = {"operand 1", "I->S(1z)"}},
      {.dims = "te,n->ten", PRODUCT, "dp=R tp=I", "dp=R tp=S0", .facts = {"operand 1", "I->R"}},
      {.dims = "bn,bn->bn", SUM, "dp=R tp=R", "dp=R tp=I", .facts = {"tp", "operand 1", "operand 2", "I->R"}},
      {.dims = "bn,bn->bn", SUM, "dp=R tp=V", "dp=R tp=I", .facts = {"operand 2", "I->R"}},
      {.dims = "bn,bn->bn", SUM, "dp=R tp=I", "dp=R tp=P", .facts = {"operand 2", "all_reduce", "P->I"}},
      {.dims = "bn,bn->bn", PRODUCT, "dp=R tp=I", "dp=R tp=P", .facts = {"operand 2", "P", "operand 1", "I->R"}},
      {.dims = "bn,bn->bn", CURVE, "dp=R tp=P", "dp=R tp=I", .facts = {"all_reduce", "operand 1", "P->I"}},
  };
  REFUSED(wrong);
}

static void a_partial_never_adds_to_a_sum(void **state) {
  static const meeting wrong[] = {
      {.dims = "bn,n->bn", SUM, "dp=R tp=P", "dp=R tp=R", .facts = {"tp", "operand 1", "operand 2", "R->P"}},
      {.dims = "bn,bn->bn", SUM, "dp=R tp=R", "dp=R tp=P", .facts = {"operand 1", "R->P"}},
      {.dims = "bn,bn->bn", SUM, "dp=R tp=S1", "dp=R tp=P", .facts = {"operand 2", "reduce_scatter", "P->S(1)"}},
      {.dims = "bn,b->bn", SUM, "dp=R tp=S1", "dp=R tp=P", .facts = {"all_reduce", "operand 2", "P->R"}},
      {.dims = "bn,bn->bn", SUM, "dp=R tp=V", "dp=R tp=P", .facts = {"operand 1", "V->P"}},
      {.dims = "bn,b->b", SUM, "dp=S1 tp=R", "dp=R tp=R", .facts = {"all_gather", "operand 1", "S(1)->R"}},
  };
  REFUSED(wrong);
}

static void a_partial_is_never_squared_or_bent(void **state) {
  static const meeting wrong[] = {
      {.dims = "bn,bn->bn",
       PRODUCT,
       "dp=P tp=R",
       "dp=P tp=R",
       .facts = {"dp_shard", "operand 1", "operand 2", "all_reduce", "P->R"}},
      {.dims = "bn,bn->bn", PRODUCT, "dp=P tp=R", "dp=S0 tp=R", .facts = {"reduce_scatter", "operand 1", "P->S(0)"}},
      {.dims = "bn,bn->bn", PRODUCT, "dp=P tp=R", "dp=V tp=R", .facts = {"all_reduce", "operand 1", "P->R"}},
      {.dims = "bn->bn", CURVE, "dp=P tp=R", .facts = {"dp_shard", "operand 1", "all_reduce", "P->R"}},
  };
  REFUSED(wrong);
}

static void shardings_fit_or_are_refused(void **state) {
  static const meeting wrong[] = {
      {.dims = "bn,bn->bn", SUM, "dp=V tp=R", "dp=S0 tp=R", .facts = {"operand 2", "all_gather", "S(0)->R"}},
      {.dims = "bn,b->bn", PRODUCT, "dp=S1 tp=R", "dp=V tp=R", .facts = {"operand 2", "operand 1", "S(1)->V"}},
      {.dims = "bn,nb->bn", SUM, "dp=S0 tp=R", "dp=R tp=R", .facts = {"operand 2", "R->S(1)"}},
      {.dims = "bk,kn->bn", PRODUCT, "dp=R tp=S1", "dp=R tp=R", .facts = {"operand 2", "R->S(0)"}},
      {.dims = "bk,kn->bn",
       PRODUCT,
       "dp=S0 tp=R",
       "dp=S1 tp=R",
       .facts = {"dp_shard", "operand 1", "S(0)", "operand 2", "all_gather", "S(1)->R"}},
      {.dims = "bn,bn->bn", PRODUCT, "dp=S0 tp=R", "dp=S1 tp=R", .facts = {"all_to_all", "operand 2", "S(1)->S(0)"}},
      {.dims = "bn,bn->bn", PRODUCT, "dp=S0z tp=R", "dp=S0 tp=R", .facts = {"all_to_all", "operand 2", "S(0)->S(0z)"}},
      {.dims = "bn->bn", CURVE, "dp=R tp=S1", NULL, NULL, "n", .facts = {"tp", "operand 1", "all_gather", "S(1)->R"}},
      {.dims = "bn,bn->bn", PRODUCT, "dp=S0 tp=S0", "tp=S0 dp=S0", .facts = {"dp_shard", "operand 2", "operand 1"}},
      {.dims = "b,bn->bn",
       PRODUCT,
       "dp=S1 tp=R",
       "dp=R tp=R",
       .facts = {"dp_shard", "operand 1", "S(1)", "1 dimension"}},
  };
  REFUSED(wrong);
}

/* cp has size 1 and is checked like the other axes. */
static void an_axis_of_size_one_is_checked_like_any_other(void **state) {
  static const meeting meetings[] = {
      {.dims = "bk,kn->bn", PRODUCT, "dp=R tp=R cp=S1", "dp=R tp=R cp=S0", "dp=R tp=R cp=P"},
      {.dims = "bk,kn->bn", PRODUCT, "dp=R tp=R cp=S0", "dp=R tp=R", "dp=R tp=R cp=S0"},
  };
  static const meeting wrong[] = {
      {.dims = "bn,bn->bn", SUM, "dp=R tp=R cp=P", "dp=R tp=R", .facts = {"cp", "operand 1", "P", "operand 2", "R"}},
      {.dims = "bn,bn->bn", SUM, "dp=R tp=R cp=I", "dp=R tp=R", .facts = {"cp", "operand 1", "I", "operand 2", "R"}},
  };
  ALLOWED(meetings);
  REFUSED(wrong);
}

/* ---- repairs that messages propose, carried out ---- */

static ad_type read_type(const char *text) {
  static const ad_type types[] = {AD_R, AD_I, AD_V, AD_P, AD_S(0), AD_S(1), AD_S(2), AD_S_ZIGZAG(0), AD_S_ZIGZAG(1)};
  char printed[16];
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (strcmp(ad_type_print(types[i], printed, sizeof printed), text) == 0) return types[i];
  fail_msg("no type is \"%s\"", text);
  return AD_R;
}

static ad_move read_move(const char *text) {
  for (ad_move move = 0; move < AD_MOVE_COUNT; move++)
    if (strcmp(ad_move_name(move), text) == 0) return move;
  fail_msg("no operation is \"%s\"", text);
  return AD_MOVE_COUNT;
}

/* Applies a proposed step such as "convert operand 2 I->R" on `tp`. */
static void apply_step(const char *step, ad_layout operands[2], const int ndim[2]) {
  char move[32], from[16], to[16], printed[16];
  int operand;
  if (sscanf(step, "%31s operand %d %15[^-]->%15s", move, &operand, from, to) != 4) fail_msg("%s", step);
  ad_layout *layout = &operands[operand - 1];
  assert_string_equal(ad_type_print(layout->type[AD_TP], printed, sizeof printed), from);
  assert_int_equal(
      ad_layout_after_at(layout, read_move(move), AD_AXES(AD_TP), read_type(to), ndim[operand - 1], layout, "moe.c:87"),
      AD_OK);
}

static void apply(ad_layout operands[2], const int ndim[2]) {
  char words[512];
  const char *reported = strstr(ad_last_error(), AD_MAY_REPAIR);
  assert_non_null(reported);
  snprintf(words, sizeof words, "%s", reported + strlen(AD_MAY_REPAIR));
  for (char *step = words; step;) {
    char *then = strstr(step, ", then ");
    if (then) *then = 0;
    apply_step(step, operands, ndim);
    step = then ? then + strlen(", then ") : NULL;
  }
}

static ad_status meet_all(const ad_rule *rule, const ad_layout operands[2]) {
  const ad_layout *both[] = {&operands[0], &operands[1]};
  ad_layout out;
  return ad_layout_propagate_at(rule, both, NULL, 2, &out, "moe.c:88");
}

/* Tries every pair of types on an axis under every kind of rule: after the proposed repair the operation accepts the
 * operands. If both operands must change (two partial sums inside a nonlinear function), the second message proposes
 * the other change. */
static void what_is_said_to_repair_it_does(void **state) {
  static const char *const types[] = {"R", "I", "V", "P", "S0", "S1", "S0z", "S1z"};
  static const struct {
    const char *dims;
    int ndim[2];
  } rules[] = {{"bn,bn->bn", {2, 2}}, {"bk,kn->bn", {2, 2}}, {"bn,nb->bn", {2, 2}},
               {"bn,n->bn", {2, 1}},  {"bn,b->b", {2, 1}},   {"te,n->ten", {2, 1}}};
  int at_once = 0, later = 0;
  for (int i = 0; i < 6 * 3 * 64; i++) {
    char text[2][32];
    ad_layout operands[2];
    ad_rule rule = {sizeof rule, "multiply", rules[i / 192].dims, (ad_linearity)(i / 64 % 3), NULL};
    for (int o = 0; o < 2; o++) {
      snprintf(text[o], sizeof text[o], "dp=R tp=%s", types[o ? i % 8 : i / 8 % 8]);
      operands[o] = read_layout(text[o]);
    }
    if (meet_all(&rule, operands) == AD_OK) continue;
    if (!strstr(ad_last_error(), AD_MAY_REPAIR)) { /* an operand of one dimension is sharded along a second one */
      assert_says_in("nothing repairs it", ad_last_error(), SAYS_FACTS("multiply", "tp"));
      continue;
    }
    apply(operands, rules[i / 192].ndim);
    int is_taken = meet_all(&rule, operands) == AD_OK;
    at_once += is_taken;
    later += !is_taken;
    if (is_taken) continue;
    apply(operands, rules[i / 192].ndim);
    if (meet_all(&rule, operands)) fail_msg("%s of %s and %s: %s", rule.dims, text[0], text[1], ad_last_error());
  }
  assert_true(at_once > 700 && later < 50);
}

static void operands_lie_on_one_mesh(void **state) {
  ad_mesh *view = NULL;
  assert_int_equal(ad_mesh_create_view(mesh, "ep=6", &view), AD_OK);
  ad_layout a = ad_layout_all(mesh, AD_R), b = ad_layout_all(view, AD_R), out;
  ad_rule rule = {sizeof rule, "add", "b,b->b", AD_ADDITIVE, NULL};
  assert_int_equal(ad_layout_propagate_at(&rule, (const ad_layout *[]){&a, &b}, NULL, 2, &out, NULL), AD_TYPE);
  assert_says("dp_shard=3 cp=1 tp=2", "ep=6", "1", "2");
  ad_mesh_destroy(view);
}

static void a_rule_that_is_none_is_refused(void **state) {
  static const char *const dims[] = {"",        "b,b",    "b-b->b",       "b,b->b,b", "b,b->b-", "bb,b->b",
                                     "b,b->bb", "b,1->b", "abcdefg,b->b", "b,b->>",   "b->b",    "b,b,b->b"};
  ad_layout a = ad_layout_all(mesh, AD_R), out;
  for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
    ad_rule rule = {sizeof rule, "add", dims[i], AD_ADDITIVE, NULL};
    assert_int_equal(ad_layout_propagate_at(&rule, (const ad_layout *[]){&a, &a}, NULL, 2, &out, NULL), AD_INVALID);
  }
}

/* The comparison with arithmetic: one axis of 3 ranks; values of up to 3 dimensions with these sizes, uneven and
 * smaller than 3. */
enum { RANKS = 3, NUMEL_MAX = 64, OPERANDS_MAX = 2, LETTERS = 4 };
static const int letter_size[LETTERS] = {4, 2, 3, 1}; /* sizes of the dimensions a, b, c, d */

typedef struct value {
  ad_shape shape;
  double at[NUMEL_MAX];
} value;

static ad_shape shape_of(const char *letters, int count) {
  ad_shape shape = {.ndim = count};
  for (int i = 0; i < count; i++) shape.dim[i] = letter_size[letters[i] - 'a'];
  return shape;
}

/* The index in `shape` of the element at a point, which has a coordinate for each letter. */
static int64_t index_of(const char *letters, const ad_shape *shape, const int64_t point[LETTERS]) {
  int64_t index = 0;
  for (int i = 0; i < shape->ndim; i++) index = index * shape->dim[i] + point[letters[i] - 'a'];
  return index;
}

typedef struct experiment {
  ad_rule rule;
  int count;
  const char *letters[OPERANDS_MAX + 1]; /* letters of each operand, and at last of the result */
  int letter_count[OPERANDS_MAX + 1];
} experiment;

static experiment plan(const char *dims, ad_linearity linearity) {
  experiment e = {.rule = {sizeof(ad_rule), "test", dims, linearity, NULL}};
  for (const char *c = dims;; c += 1 + (*c == '-')) {
    size_t length = strcspn(c, ",-");
    e.letters[e.count] = c;
    e.letter_count[e.count++] = (int)length;
    c += length;
    if (!*c) break;
  }
  e.count--;
  return e;
}

static double combine(ad_linearity linearity, double product) {
  return linearity == AD_NONLINEAR ? product * product + product + 1 : product;
}

/* Sums the formula over all points within `extent`; letters that neither an operand nor the result has stay 0. */
static void sum_over(const experiment *e, const int64_t extent[LETTERS], const value *operands, int only, value *out) {
  int64_t point[LETTERS], points = 1;
  int used[LETTERS] = {0};
  for (int i = 0; i <= e->count; i++)
    for (int k = 0; k < e->letter_count[i]; k++) used[e->letters[i][k] - 'a'] |= only < 0 || i == only || i == e->count;
  for (int k = 0; k < LETTERS; k++) points *= used[k] ? extent[k] : 1;
  for (int64_t p = 0; p < points; p++) {
    double product = 1;
    for (int64_t k = 0, rest = p; k < LETTERS; k++) {
      point[k] = used[k] ? rest % extent[k] : 0;
      rest /= used[k] ? extent[k] : 1;
    }
    for (int i = 0; i < e->count; i++)
      if (only < 0 || i == only) product *= operands[i].at[index_of(e->letters[i], &operands[i].shape, point)];
    out->at[index_of(e->letters[e->count], &out->shape, point)] += combine(e->rule.linearity, product);
  }
}

static value compute(const experiment *e, const int64_t extent[LETTERS], const value *operands) {
  value out = {.shape.ndim = e->letter_count[e->count]};
  for (int i = 0; i < out.shape.ndim; i++) out.shape.dim[i] = extent[e->letters[e->count][i] - 'a'];
  if (e->rule.linearity != AD_ADDITIVE) sum_over(e, extent, operands, -1, &out);
  for (int i = 0; i < e->count && e->rule.linearity == AD_ADDITIVE; i++) sum_over(e, extent, operands, i, &out);
  return out;
}

static double number(int64_t seed) { return (double)((seed * 7919 + 13) % 101) / 17 - 2; }

/* The index in the full value of element `local` of a part that is sharded along `dim` from `first` on. */
static int64_t full_index(const ad_shape *full, const ad_shape *part, int dim, int64_t first, int64_t local) {
  int64_t index = 0, factor = 1;
  for (int i = full->ndim - 1; i >= 0; i--) {
    index += (local % part->dim[i] + (i == dim ? first : 0)) * factor;
    local /= part->dim[i];
    factor *= full->dim[i];
  }
  return index;
}

/* Returns a rank's part of a full value under the type; for P, the rank's addend. */
static value part_of(const value *full, ad_type type, int64_t rank) {
  value part = {.shape = full->shape};
  int dim = ad_type_dim(type);
  ad_span span = {0};
  if (dim >= 0) span = ad_cut(full->shape.dim[dim], rank, RANKS), part.shape.dim[dim] = span.count;
  for (int64_t i = 0; i < ad_shape_numel(&part.shape); i++) {
    double x = full->at[full_index(&full->shape, &part.shape, dim, span.first, i)];
    part.at[i] = type != AD_P ? x : rank < RANKS - 1 ? number(i + 50 * rank) : x - number(i) - number(i + 50);
  }
  return part;
}

/* Whether the ranks' results, taken as `type`, make up `full`. */
static int makes_up(const value *full, ad_type type, const value parts[RANKS]) {
  value sum = {.shape = full->shape};
  int dim = ad_type_dim(type);
  for (int64_t rank = 0; rank < RANKS; rank++) {
    int64_t first = dim < 0 ? 0 : ad_cut(full->shape.dim[dim], rank, RANKS).first;
    for (int64_t i = 0; i < ad_shape_numel(&parts[rank].shape); i++) {
      int64_t at = full_index(&full->shape, &parts[rank].shape, dim, first, i);
      if (type == AD_R && fabs(parts[rank].at[i] - full->at[at]) > 1e-9) return 0;
      sum.at[at] += type == AD_R ? parts[rank].at[i] / RANKS : parts[rank].at[i];
    }
  }
  for (int64_t i = 0; i < ad_shape_numel(&full->shape); i++)
    if (fabs(sum.at[i] - full->at[i]) > 1e-9) return 0;
  return 1;
}

/* Gets the sizes that one rank sees; returns 0 if operands disagree about a letter, so that nothing can be computed. */
static int local_extent(const experiment *e, const value *parts, int64_t extent[LETTERS]) {
  for (int k = 0; k < LETTERS; k++) extent[k] = -1;
  for (int i = 0; i < e->count; i++)
    for (int k = 0; k < e->letter_count[i]; k++) {
      int64_t *size = &extent[e->letters[i][k] - 'a'];
      if (*size >= 0 && *size != parts[i].shape.dim[k]) return 0;
      *size = parts[i].shape.dim[k];
    }
  for (int k = 0; k < LETTERS; k++) extent[k] = extent[k] < 0 ? letter_size[k] : extent[k];
  return 1;
}

/* Whether the ranks' results are right under any type that a result can have; *claim: under the claimed type. */
static int some_type_holds(const experiment *e, const value *full, const ad_type types[], ad_type claimed, int *claim) {
  value operands[OPERANDS_MAX] = {0}, parts[OPERANDS_MAX], results[RANKS];
  int64_t extent[LETTERS];
  int holds = 0;
  for (int64_t rank = 0; rank < RANKS; rank++) {
    for (int i = 0; i < e->count; i++) operands[i] = full[i], parts[i] = part_of(&operands[i], types[i], rank);
    if (!local_extent(e, parts, extent)) return *claim = 0;
    results[rank] = compute(e, extent, parts);
  }
  int64_t full_extent[LETTERS];
  for (int k = 0; k < LETTERS; k++) full_extent[k] = letter_size[k];
  value right = compute(e, full_extent, operands);
  for (int candidate = -2; candidate < right.shape.ndim; candidate++) {
    ad_type type = candidate == -2 ? AD_R : candidate == -1 ? AD_P : AD_S(candidate);
    int fits = 1;
    for (int64_t rank = 0; rank < RANKS; rank++) {
      value part = part_of(&right, type, rank);
      fits &= ad_shape_equal(&part.shape, &results[rank].shape);
    }
    int made = fits && makes_up(&right, type, results);
    holds |= made;
    if (type == claimed) *claim = made;
  }
  return holds;
}

static ad_type nth_type(int n) { return n == 0 ? AD_R : n == 1 ? AD_P : AD_S(n - 2); }

static void check_experiment(const experiment *e, const ad_mesh *axis_mesh) {
  value full[OPERANDS_MAX] = {0};
  for (int i = 0; i < e->count; i++) {
    full[i].shape = shape_of(e->letters[i], e->letter_count[i]);
    for (int64_t k = 0; k < ad_shape_numel(&full[i].shape); k++) full[i].at[k] = number(k + 31 * i);
  }
  int choices[OPERANDS_MAX] = {2 + e->letter_count[0], e->count > 1 ? 2 + e->letter_count[1] : 1};
  for (int code = 0; code < choices[0] * choices[1]; code++) {
    ad_type types[] = {nth_type(code % choices[0]), nth_type(code / choices[0])};
    ad_layout layouts[OPERANDS_MAX], out = ad_layout_all(axis_mesh, AD_V);
    for (int i = 0; i < OPERANDS_MAX; i++) {
      layouts[i] = ad_layout_all(axis_mesh, AD_R);
      ad_layout_set(&layouts[i], AD_AXES(AD_TP), types[i]);
    }
    ad_status status = ad_layout_propagate_at(&e->rule, (const ad_layout *[]){&layouts[0], &layouts[1]}, NULL,
                                              (size_t)e->count, &out, NULL);
    int claim = 0, holds = some_type_holds(e, full, types, out.type[AD_TP], &claim);
    assert_int_equal(status == AD_OK, claim);
    assert_int_equal(status == AD_OK, holds);
  }
}

/* An operation is allowed only if its result type is true of the numbers, and refused only if no type would be. */
static void propagation_agrees_with_arithmetic(void **state) {
  static const char *const products[] = {"ac,cb->ab", "ab,ab->ab", "ab,b->ab", "ab,ba->ab", "abc,c->ba", "ab,c->abc"};
  static const char *const sums[] = {"ab,ab->ab", "ab,b->ab", "ab,ba->ab", "cb,c->cb"};
  static const char *const alone[] = {"ac->ca", "ac->a", "ac->", "abc->b"};
  ad_mesh *axis_mesh = NULL;
  assert_int_equal(ad_mesh_create("tp=3", &axis_mesh), AD_OK);
  for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
    experiment product = plan(products[i], AD_MULTILINEAR), curve = plan(products[i], AD_NONLINEAR);
    check_experiment(&product, axis_mesh);
    check_experiment(&curve, axis_mesh);
  }
  for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
    experiment sum = plan(sums[i], AD_ADDITIVE);
    check_experiment(&sum, axis_mesh);
  }
  for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++)
    for (int linearity = AD_MULTILINEAR; linearity <= AD_NONLINEAR; linearity++) {
      experiment e = plan(alone[i], (ad_linearity)linearity);
      check_experiment(&e, axis_mesh);
    }
  ad_mesh_destroy(axis_mesh);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equal_types_meet),
      cmocka_unit_test(a_kept_sharded_dimension_stays_sharded_in_the_result),
      cmocka_unit_test(a_contracted_sharded_dimension_is_a_partial),
      cmocka_unit_test(a_linear_operation_keeps_a_partial),
      cmocka_unit_test(a_constant_is_replicated_or_invariant_as_needed),
      cmocka_unit_test(an_invariant_meets_only_invariants),
      cmocka_unit_test(a_partial_never_adds_to_a_sum),
      cmocka_unit_test(a_partial_is_never_squared_or_bent),
      cmocka_unit_test(shardings_fit_or_are_refused),
      cmocka_unit_test(an_axis_of_size_one_is_checked_like_any_other),
      cmocka_unit_test(what_is_said_to_repair_it_does),
      cmocka_unit_test(operands_lie_on_one_mesh),
      cmocka_unit_test(a_rule_that_is_none_is_refused),
      cmocka_unit_test(propagation_agrees_with_arithmetic),
  };
  return cmocka_run_group_tests(tests, make_mesh, drop_mesh);
}
