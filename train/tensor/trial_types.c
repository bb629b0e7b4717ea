/* Checks the rule of types: lays operands out in every way that the rule allows. This process computes what each of
 * several ranks would, one rank after another. Each rank's result must be its part of the result of one process. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "array/array.h"
#include "array/part.h"
#include "base/random.h"
#include "base/injection.h"
#include "layout/shown.h"
#include "tensor/trial.h"

static const char site[] = "ad_check_operation";

enum {
  RANKS = 6,      /* number of ranks of the largest mesh */
  WAYS_MAX = 600, /* ways to lay out operands that are tried on one axis: all, or this many drawn at random */
  PAIRS = 64,     /* pairs of ways that are drawn for two axes */
  TYPES = 3 + 2 * AD_DIMS_MAX,
  DRAWS = 4000, /* the first of the random streams from which ways are drawn */
  TEXT = 400
};

/* One rank of the mesh, whose part this process computes. */
typedef struct player {
  ad_comm *comm; /* comm of backend dry; the rank's tape computes nevertheless */
  ad_tape *tape;
  ad_tried tried;
  ad_array arriving;
  uint64_t bytes; /* bytes that went through comm before the present layouts were tried */
} player;

/* A mesh and all its ranks; this process computes each rank's part, one after another. */
typedef struct stage {
  const ad_trial *trial;
  ad_mesh *mesh;
  size_t size; /* number of ranks */
  player player[RANKS];
  player judge; /* a dry tape, which shows whether the rule refuses the present layouts */
  int transits; /* transitions that ran while the present layouts were tried */
  /* the layouts of the operands that are tried now */
  ad_layout layout[AD_OPERANDS_MAX];
} stage;

/* ---- ranks that this process plays ---- */

static void close_player(player *of) {
  ad_tape_destroy(of->tape);
  if (of->comm) ad_comm_close(of->comm);
  *of = (player){0};
}

static ad_status open_player(const stage *s, size_t rank, player *of) {
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  AD_TRY(ad_comm_open_dry((int64_t)rank, (int64_t)s->size, &of->comm));
  return ad_tape_create(of->comm, s->mesh, &options, &of->tape);
}

static ad_status open_stage(stage *s, const char *mesh) {
  AD_TRY(ad_mesh_create(mesh, &s->mesh));
  s->size = (size_t)ad_mesh_size(s->mesh);
  for (size_t i = 0; i < s->size; i++) {
    AD_TRY(open_player(s, i, &s->player[i]));
    s->player[i].tape->dry = 0;
  }
  return open_player(s, 0, &s->judge);
}

static void close_stage(stage *s) {
  for (size_t i = 0; i < RANKS; i++) close_player(&s->player[i]);
  close_player(&s->judge);
  ad_mesh_destroy(s->mesh);
}

/* ---- comparing the ranks' parts with one process ---- */

static const char *print_layouts(const stage *s, char *text) {
  size_t used = 0;
  text[0] = 0;
  for (size_t i = 0; i < s->trial->given.count && used < TEXT; i++) {
    char one[160];
    used += (size_t)snprintf(text + used, TEXT - used, "%s\"%s\"", i ? ", " : "",
                             ad_layout_shown(&s->layout[i], one, sizeof one));
  }
  return text;
}

static ad_status differs(const stage *s, const ad_layout *layout, const char *what, size_t number, size_t rank,
                         size_t i, double is, double wanted) {
  char operands[TEXT], shown[160];
  return ad_trial_fail(s->trial,
                       "by its types, operands that are %s make %s%.0zu \"%s\" on \"%s\", but the ranks' values do not "
                       "match: element %zu of rank %zu%s is %g, and one process computes %g",
                       print_layouts(s, operands), what, number, ad_layout_shown(layout, shown, sizeof shown),
                       ad_mesh_text(s->mesh), i, rank, ad_layout_axes_of(layout, AD_P) ? ", summed over ranks," : "",
                       is, wanted);
}

/* Returns element i of one rank's part; if the value is P, the sum of the element over the ranks with addends. */
static double together(const ad_array *const *parts, const ad_group *group, size_t i) {
  double sum = 0;
  for (int64_t k = 0; k < ad_group_size(group); k++) sum += ad_array_get(parts[ad_group_rank(group, k)], i);
  return sum;
}

static double largest(const double *numbers, size_t n) {
  double most = 0;
  for (size_t i = 0; i < n; i++) most = fmax(most, fabs(numbers[i]));
  return most;
}

/* Compares what a rank computed (parts[rank]) with this rank's part of the full value. */
static ad_status part_is(const stage *s, const ad_array *const *parts, size_t rank, const double *full,
                         const char *what, size_t number) {
  const ad_array *own = parts[rank];
  ad_group group = ad_mesh_group(s->mesh, ad_layout_axes_of(&own->layout, AD_P), (int64_t)rank);
  ad_layout everywhere = ad_layout_all(s->mesh, AD_R);
  ad_array wanted = ad_array_describe(s->player[rank].comm, AD_F64, &own->shape, &own->layout);
  AD_TRY(ad_tape_take(s->player[rank].tape, ad_array_bytes(&wanted), &wanted.data));
  ad_part all, mine;
  ad_part_of(&everywhere, &own->shape, (int64_t)rank, &all);
  ad_part_of(&own->layout, &own->shape, (int64_t)rank, &mine);
  ad_part_copy(wanted.data, &mine, full, &all, &mine, sizeof(double));
  double bound = 1e-10 * (1 + largest(full, (size_t)ad_shape_numel(&own->shape)));
  for (size_t i = 0; i < ad_array_numel(own); i++) {
    double is = together(parts, &group, i), should = ad_array_get(&wanted, i);
    if (!(fabs(is - should) <= bound)) return differs(s, &own->layout, what, number, rank, i, is, should);
  }
  return AD_OK;
}

static ad_status parts_are(const stage *s, const ad_array *const *parts, const double *full, const char *what,
                           size_t number) {
  for (size_t rank = 0; rank < s->size; rank++) AD_TRY(part_is(s, parts, rank, full, what, number));
  return AD_OK;
}

static ad_status results_are_right(const stage *s) {
  const ad_array *parts[RANKS] = {NULL};
  for (size_t i = 0; i < s->size; i++) parts[i] = ad_tensor_array(s->player[i].tried.out);
  if (!ad_shape_equal(&parts[0]->shape, &s->trial->shape))
    return ad_trial_fail(s->trial, "the result has a different shape when operands are sharded");
  return parts_are(s, parts, s->trial->result, "a result that is", 0);
}

static ad_status gradients_are_right(const stage *s) {
  for (size_t k = 0; k < s->trial->given.count; k++) {
    const ad_array *parts[RANKS] = {NULL};
    for (size_t i = 0; i < s->size; i++) parts[i] = ad_grad(s->player[i].tried.x[k]);
    if (parts[0]) AD_TRY(parts_are(s, parts, s->trial->gradient[k], "a gradient of operand ", k + 1));
  }
  return AD_OK;
}

/* ---- trying one way to lay out the operands ---- */

/* Returns 1 if ranks communicated. Their results then mean nothing, because ranks that are computed one after another
 * do not get each other's values. */
static int talked(const stage *s) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < s->size; i++) bytes += ad_comm_bytes(s->player[i].comm) - s->player[i].bytes;
  return bytes || s->transits;
}

static void count_transit(void *context, void *passing) { ++*(int *)context; }

/* Opens a broken communicator again: a failing operation that communicates reports to the other ranks, and then the
 * communicator can only be closed. */
static ad_status reopen_if_broken(stage *s) {
  if (!ad_comm_health(s->judge.comm)) return AD_OK;
  close_player(&s->judge);
  return open_player(s, 0, &s->judge);
}

/* Sets *legal to 1 if the rule and the operation's own checks allow the present layouts. Computes nothing. */
static ad_status judge_way(stage *s, int *legal) {
  ad_tape_reset(s->judge.tape);
  AD_TRY(ad_trial_record(s->trial, s->judge.tape, s->layout, &s->judge.tried));
  ad_status status = ad_tape_status(s->judge.tape);
  *legal = !status;
  if (!status || status == AD_TYPE || status == AD_INVALID) return reopen_if_broken(s);
  return status;
}

static ad_status record_on_all(stage *s) {
  for (size_t i = 0; i < s->size; i++) {
    player *of = &s->player[i];
    of->bytes = ad_comm_bytes(of->comm);
    ad_tape_reset(of->tape);
    AD_TRY(ad_trial_record(s->trial, of->tape, s->layout, &of->tried));
    ad_status status = ad_tape_status(of->tape);
    if (status) return ad_fail_in(status, "%s, on rank %zu of the mesh \"%s\"", site, i, ad_mesh_text(s->mesh));
  }
  return AD_OK;
}

static ad_status backward_on(const stage *s, player *of) {
  ad_layout dual = ad_layout_dual(&ad_tensor_array(of->tried.out)->layout);
  of->arriving = ad_array_describe(of->comm, AD_F64, &s->trial->shape, &dual);
  AD_TRY(ad_trial_part(s->trial, of->tape, s->trial->arriving, DRAWS, &of->arriving));
  return ad_backward_from_at(of->tape, &of->tried.out, (const ad_array *[]){&of->arriving}, 1, AD_LAST_START, site);
}

/* Returns 1 if each rank has its own value (V), so that there is no full value to compare with. */
static int is_varying(const stage *s) {
  return ad_layout_axes_of(&ad_tensor_array(s->player[0].tried.out)->layout, AD_V) != 0;
}

/* Tries the present layouts. If they are legal, compares results and gradients with those of one process. */
static ad_status make_and_compare(stage *s, int *legal) {
  AD_TRY(judge_way(s, legal));
  if (!*legal) return AD_OK;
  s->transits = 0;
  AD_TRY(record_on_all(s));
  if (talked(s) || is_varying(s)) return AD_OK;
  AD_TRY(results_are_right(s));
  for (size_t i = 0; i < s->size; i++) AD_TRY(backward_on(s, &s->player[i]));
  return talked(s) ? AD_OK : gradients_are_right(s);
}

static ad_status try_way(stage *s, int *legal) {
  ad_injection before = ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){count_transit, &s->transits});
  ad_status status = make_and_compare(s, legal);
  ad_injection_set(AD_INJECT_TRANSIT, before);
  return status;
}

/* ---- all ways on one axis ---- */

/* A way to lay out operands on an axis: a type for each operand. */
typedef struct way {
  ad_type type[AD_OPERANDS_MAX];
} way;

/* Lists the types that an operand may have; returns their number. */
static size_t types_of(const ad_trial *trial, size_t operand, ad_type type[TYPES]) {
  size_t count = 0;
  int is_index = (int)(trial->op->indices >> operand & 1);
  type[count++] = AD_R;
  type[count++] = AD_I;
  if (!is_index) type[count++] = AD_P;
  for (int d = 0; d < trial->given.shapes[operand].ndim; d++) {
    type[count++] = AD_S(d);
    type[count++] = AD_S_ZIGZAG(d);
  }
  return count;
}

/* Returns the way with this number or, if there are too many ways, a random way drawn by this number. */
static way way_of(const ad_trial *trial, uint64_t number, int is_drawn) {
  way out = {{AD_R}};
  for (size_t i = 0; i < trial->given.count; i++) {
    ad_type type[TYPES];
    size_t count = types_of(trial, i, type);
    uint64_t digit = is_drawn ? ad_random_bits(trial->given.seed, DRAWS + 1 + i, number) : number;
    out.type[i] = type[digit % count];
    number = is_drawn ? number : number / count;
  }
  return out;
}

/* Returns the number of ways, or some number above WAYS_MAX. */
static uint64_t ways_of(const ad_trial *trial) {
  uint64_t ways = 1;
  for (size_t i = 0; i < trial->given.count && ways <= WAYS_MAX; i++) {
    ad_type type[TYPES];
    ways *= types_of(trial, i, type);
  }
  return ways;
}

static void lay_out(stage *s, ad_axis axis, const way *of) {
  for (size_t i = 0; i < s->trial->given.count; i++) ad_layout_set(&s->layout[i], AD_AXES(axis), of->type[i]);
}

static void lay_out_nothing(stage *s) {
  for (size_t i = 0; i < s->trial->given.count; i++) s->layout[i] = ad_layout_all(s->mesh, AD_R);
}

/* Tries the ways on one axis and lists the legal ones. */
static ad_status on_one_axis(const ad_trial *trial, stage *s, way *legal, size_t *legal_count) {
  AD_TRY(open_stage(s, "tp=3"));
  uint64_t ways = ways_of(trial);
  int is_drawn = ways > WAYS_MAX, is_legal;
  for (uint64_t k = 0; k < (is_drawn ? WAYS_MAX : ways); k++) {
    way one = way_of(trial, k, is_drawn);
    lay_out_nothing(s);
    lay_out(s, AD_TP, &one);
    AD_TRY(try_way(s, &is_legal));
    if (is_legal) legal[(*legal_count)++] = one;
  }
  return AD_OK;
}

/* Tries pairs of legal ways on two axes. */
static ad_status on_two_axes(const ad_trial *trial, stage *s, const way *legal, size_t count) {
  AD_TRY(open_stage(s, "dp_shard=2 tp=3"));
  int is_legal;
  for (uint64_t k = 0; count && k < PAIRS; k++) {
    uint64_t seed = trial->given.seed;
    lay_out_nothing(s);
    lay_out(s, AD_DP_SHARD, &legal[ad_random_below(seed, DRAWS, 2 * k, (int64_t)count)]);
    lay_out(s, AD_TP, &legal[ad_random_below(seed, DRAWS, 2 * k + 1, (int64_t)count)]);
    AD_TRY(try_way(s, &is_legal));
  }
  return AD_OK;
}

ad_status ad_trial_types(const ad_trial *trial) {
  if (trial->op->makes_memory) return AD_OK;  // the shape of such a result differs between ranks
  stage one = {.trial = trial}, two = {.trial = trial};
  size_t count = 0;
  way *legal = ad_arena_take(trial->arena, WAYS_MAX * sizeof *legal);
  if (!legal) return AD_MEMORY;
  ad_status status = on_one_axis(trial, &one, legal, &count);
  close_stage(&one);
  AD_TRY(status);
  status = on_two_axes(trial, &two, legal, count);
  close_stage(&two);
  return status;
}
