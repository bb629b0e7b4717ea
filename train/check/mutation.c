/* Recognises a transition each time it is executed, and makes it wrong. The wrong result is computed from the values
 * that all ranks of the mesh submitted, so the same arithmetic serves all operators. Operators differ only in which
 * ranks' values are combined, and with what factor. */
#include "check/mutation.h"

#include <stdio.h>
#include <string.h>

#include "array/array.h"
#include "array/packed.h"
#include "array/part.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "kernels/tree.h"
#include "base/memory.h"
#include "check/leaf_sums.h"
#include "check/lifted_injections.h"
#include "tensor/tape.h"
#include "layout/type.h"
#include "mesh/mesh.h"

static const char *const operator_names[] = {
#define OPERATOR_NAME(code, name) name,
    AD_OPERATOR_LIST(OPERATOR_NAME)
#undef OPERATOR_NAME
};
const char *ad_operator_name(ad_operator operator_) { return operator_names[operator_]; }

const char *ad_place_print(const ad_place *place, char *buffer, size_t size) {
  char axes[96], number[24] = "";
  ad_axes shown = place->axes & place->named ? place->axes & place->named : place->axes;
  if (place->ordinal >= 0) snprintf(number, sizeof number, " (number %d)", place->ordinal);
  snprintf(buffer, size, "%s: %s over %s%s", place->what, ad_move_name(place->move),
           ad_axes_print(shown, axes, sizeof axes), number);
  return buffer;
}

/* ---- listing the transitions of a step ---- */

/* Describes the transition as a place. `segment` is the index of the parameter in a packed array, or -1. */
static ad_place transit_place(const ad_comm *comm, const ad_transit *transit, const ad_array *in, int segment) {
  const ad_mesh *mesh = in->layout.mesh;
  int on_tape = !transit->what && !transit->names;
  ad_place place = {.move = transit->move,
                    .to = transit->to,
                    .axes = transit->axes,
                    .named = ad_mesh_named(mesh),
                    .large = ad_mesh_large(mesh),
                    .partial = ad_layout_axes_of(&in->layout, AD_P) & ~transit->axes,
                    .same = ad_layout_same_axes(&in->layout),
                    .ranks = ad_mesh_ranks_over(mesh, transit->axes),
                    .ordinal = on_tape ? transit->ordinal : -1,
                    .is_segment = segment >= 0,
                    .times = 1,
                    .rank = ad_comm_rank(comm)};
  place.phase = !on_tape ? AD_PLACE_STEP : transit->backward ? AD_PLACE_BACKWARD : AD_PLACE_FORWARD;
  if (transit->axes) place.from = in->layout.type[__builtin_ctz(transit->axes)];
  const char *what = transit->names && segment >= 0 ? transit->names[segment] : on_tape ? transit->site : transit->what;
  snprintf(place.what, sizeof place.what, "%s", what ? what : "");
  return place;
}

/* Returns 1 if the places are the same transition. Places on meshes of pools that do not name the same axes differ. */
static int same_place(const ad_place *a, const ad_place *b) {
  int same_axes = a->axes == b->axes && (a->axes & a->named) == (b->axes & b->named);
  return same_axes && a->phase == b->phase && a->move == b->move && a->ordinal == b->ordinal &&
         a->is_segment == b->is_segment && !strcmp(a->what, b->what);
}

/* Returns the place in the list that is the same transition, or NULL. */
static ad_place *find_place(const ad_places *places, const ad_place *place) {
  for (size_t i = places->count; i-- > 0;)
    if (same_place(&places->list[i], place)) return &places->list[i];
  return NULL;
}

/* Adds the place or, if it is listed, counts one more execution. Transitions only over axes that the mesh does not name
 * are left out: they have one rank, and no program asked for them. */
static void list_place(ad_places *places, ad_place place) {
  if (!(place.axes & place.named)) return;
  ad_place *known = find_place(places, &place);
  if (known) {
    known->times++;
    return;
  }
  if (places->count == places->capacity) {
    size_t capacity = places->capacity ? 2 * places->capacity : 64;
    places->status = ad_grow(&places->list, places->capacity, capacity);
    if (places->status) return;
    places->capacity = capacity;
  }
  places->list[places->count++] = place;
}

static int segments_of(const ad_transit *transit, const ad_array *in) {
  return transit->names ? (int)in->segment_count : 0;
}

static void list_transit(void *context, void *passing) {
  const ad_transit_passing *pass = passing;
  ad_places *places = context;
  int segments = segments_of(pass->transit, pass->in);
  if (places->status) return;
  if (!segments) list_place(places, transit_place(pass->comm, pass->transit, pass->in, -1));
  for (int i = 0; i < segments; i++) list_place(places, transit_place(pass->comm, pass->transit, pass->in, i));
}

ad_status ad_places_add(ad_places *to, const ad_places *from) {
  size_t before = to->count;
  for (size_t i = 0; i < from->count && !to->status; i++) {
    ad_places known = {.list = to->list, .count = before};
    if (!find_place(&known, &from->list[i])) list_place(to, from->list[i]);
  }
  return to->status;
}

void ad_places_watch(ad_places *places) { ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){list_transit, places}); }

void ad_places_release(ad_places *places) {
  ad_release(places->list);
  *places = (ad_places){0};
}

/* ---- gathering the values that every rank submitted ---- */

/* A range of elements in this rank's memory of an array: the whole array, or one segment of it. */
typedef struct stretch {
  size_t start, numel;
} stretch;

static stretch stretch_of(const ad_array *array, int64_t rank, int segment) {
  if (segment < 0) return (stretch){0, ad_array_numel(array)};
  stretch found;
  ad_packed_stretch(array, rank, (size_t)segment, &found.start, &found.numel);
  return found;
}

static void read_values(const ad_array *array, stretch from, double *out) {
  const char *data = (const char *)array->data + from.start * ad_dtype_size(array->dtype);
  if (array->dtype == AD_I64)
    for (size_t i = 0; i < from.numel; i++) out[i] = (double)((const int64_t *)(const void *)data)[i];
  else
    ad_cast(out, AD_F64, data, array->dtype, from.numel);
}

static void write_values(const ad_array *array, stretch to, const double *values) {
  char *data = (char *)array->data + to.start * ad_dtype_size(array->dtype);
  if (array->dtype == AD_I64)
    for (size_t i = 0; i < to.numel; i++) ((int64_t *)(void *)data)[i] = (int64_t)values[i];
  else
    ad_cast(data, array->dtype, values, AD_F64, to.numel);
}

/* The size of what one rank submitted: `values` arrays of `numel` elements each. `values` is 1 unless leaves are
 * summed. */
typedef struct held {
  int64_t numel, values;
} held;

/* The values that all ranks of the mesh submitted, filled by gather(). */
typedef struct submitted {
  ad_group everyone; /* all ranks of the mesh */
  held *held;        /* for each rank, the size of what it submitted */
  size_t *counts;    /* for each rank, values * numel: the number of all its elements */
  double *values;    /* the elements of one rank after another */
} submitted;

/* Returns the values of array number `which` that `rank` submitted, and sets *numel to its number of elements. */
static const double *values_of(const submitted *all, int64_t rank, size_t which, size_t *numel) {
  size_t start = 0;
  int64_t index = ad_group_index(&all->everyone, rank);
  for (int64_t i = 0; i < index; i++) start += all->counts[i];
  *numel = (size_t)all->held[index].numel;
  return all->values + start + which * *numel;
}

static size_t count_of(const submitted *all, int64_t rank) {
  return (size_t)all->held[ad_group_index(&all->everyone, rank)].values;
}

static ad_status gather_counts(ad_comm *comm, submitted *all, held own) {
  int64_t ranks = ad_group_size(&all->everyone);
  AD_TRY(ad_new((size_t)ranks, &all->held));
  AD_TRY(ad_new((size_t)ranks, &all->counts));
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_GATHER, .group = all->everyone, .in = &own, .out = all->held, .count = 2};
  call.dtype = AD_I64;
  call.site = AD_HERE;
  AD_TRY(ad_comm_run(comm, &call));
  for (int64_t i = 0; i < ranks; i++) all->counts[i] = (size_t)(all->held[i].numel * all->held[i].values);
  return AD_OK;
}

static ad_status gather_values(ad_comm *comm, submitted *all, const double *own) {
  size_t total = 0;
  for (int64_t i = 0; i < ad_group_size(&all->everyone); i++) total += all->counts[i];
  AD_TRY(ad_new(total, &all->values));
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_GATHER, .group = all->everyone, .in = own, .out = all->values};
  call.counts = all->counts;
  call.dtype = AD_F64;
  call.site = AD_HERE;
  return ad_comm_run(comm, &call);
}

/* Gathers the values of all ranks of the array's mesh, as f64. */
static ad_status gather(const ad_transit_passing *pass, stretch from, submitted *all) {
  double *own;
  ad_node nodes[AD_NODES_MAX];
  int64_t rank = ad_comm_rank(pass->comm);
  held mine = {(int64_t)from.numel, (int64_t)ad_leaf_sums_given(pass, rank, nodes)};
  all->everyone = ad_array_group(pass->comm, pass->in, AD_AXES_ALL);
  AD_TRY(ad_new(from.numel * (size_t)mine.values, &own));
  for (int64_t i = 0; i < mine.values; i++) {
    stretch at = {from.start + (size_t)i * ad_array_numel(pass->in), from.numel};
    read_values(pass->in, at, own + (size_t)i * from.numel);
  }
  ad_status status = gather_counts(pass->comm, all, mine);
  if (!status) status = gather_values(pass->comm, all, own);
  ad_release(own);
  return status;
}

static void release_submitted(submitted *all) {
  ad_release(all->held);
  ad_release(all->counts);
  ad_release(all->values);
}

/* ---- choosing the ranks whose values are combined ---- */

/* The ranks whose values are combined, as the operator requires. */
typedef struct members {
  ad_group group; /* the group over which the right transition goes */
  int64_t own;    /* this rank's index in that group */
  int64_t count;  /* number of ranks whose values are combined */
  double factor;  /* the factor by which their sum is multiplied */
  const ad_mutation *mutation;
  ad_group instead; /* the group whose values are combined; it may have more or fewer axes than the right group */
} members;

static members members_of(const ad_mutation *mutation, ad_comm *comm, const ad_array *in) {
  int64_t rank = ad_comm_rank(comm);
  ad_axes axes = mutation->place.axes, axis = AD_AXES(mutation->axis);
  members who = {.group = ad_array_group(comm, in, axes), .factor = 1, .mutation = mutation};
  who.own = ad_group_index(&who.group, rank);
  who.count = ad_group_size(&who.group);
  who.instead = who.group;
  switch (mutation->operator_) {
    case AD_OPERATOR_DOUBLED:
      who.factor = (double)who.count;
      break;
    case AD_OPERATOR_AVERAGED:
      who.factor = 1 / (double)who.count;
      break;
    case AD_OPERATOR_MORE_AXES:
      who.instead = ad_array_group(comm, in, axes | axis);
      break;
    case AD_OPERATOR_FEWER_AXES:
      who.instead = ad_array_group(comm, in, axes & ~axis);
      break;
    case AD_OPERATOR_OTHER_GROUP:
      break;
    default: /* left_out, or a backward that keeps only this rank's own part: no other rank's values are used */
      who.instead = ad_array_group(comm, in, 0);
  }
  who.count = ad_group_size(&who.instead);
  return who;
}

/* Returns member i of a sheared group: the rank that is member i of the right group, moved along another axis by the
 * difference between i and this rank's own index. Sheared groups partition the ranks, as the right groups do. */
static int64_t sheared(const members *who, int64_t i) {
  const ad_mesh *mesh = who->group.mesh;
  int64_t position[AD_AXIS_COUNT], rank = ad_group_rank(&who->group, i);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) position[axis] = ad_mesh_position(mesh, rank, (ad_axis)axis);
  int64_t size = ad_mesh_axis_size(mesh, who->mutation->axis);
  position[who->mutation->axis] = ((position[who->mutation->axis] + i - who->own) % size + size) % size;
  return ad_mesh_rank_at(mesh, position);
}

static int64_t member_at(const members *who, int64_t i) {
  return who->mutation->operator_ == AD_OPERATOR_OTHER_GROUP ? sheared(who, i) : ad_group_rank(&who->instead, i);
}

/* ---- computing the wrong result of this rank ---- */

/* One of the arrays that are summed. `node` is the node of the tree over leaves that the array is the sum of; it has no
 * leaves if the submitting rank is not in the right group, or if no leaves are summed. */
typedef struct addend {
  const double *values;
  size_t numel;
  ad_node node;
} addend;

static void add_values(double *to, const double *values, size_t numel) {
  for (size_t k = 0; k < numel; k++) to[k] += values[k];
}

/* The sum of `count` addends, list[first] and the following ones, is the sum of a lower and an upper half. Returns the
 * number of addends in the lower half: by the tree over leaves with `by_leaves`, otherwise by the tree of law 10. */
static size_t lower_half(const addend *list, size_t first, size_t count, int by_leaves) {
  size_t lower = 0, leaves = 0;
  if (!by_leaves) return ad_tree_lower(first, count);
  for (size_t i = 0; i < count; i++) leaves += (size_t)list[first + i].node.count;
  for (size_t below = 0, wanted = ad_node_lower(leaves); below < wanted; lower++)
    below += (size_t)list[first + lower].node.count;
  return lower;
}

/* Sums `count` addends, from list[first] on, in the order in which the right transition adds them, so that a mutation
 * without effect gives the same bits. If an addend does not have `numel` elements, only the elements that it and the
 * result both have are added. */
static ad_status sum_tree(const addend *list, size_t first, size_t count, int by_leaves, size_t numel, double *out) {
  double *upper;
  memset(out, 0, numel * sizeof *out);
  if (count < 2) {
    if (count) add_values(out, list[first].values, list[first].numel < numel ? list[first].numel : numel);
    return AD_OK;
  }
  size_t lower = lower_half(list, first, count, by_leaves);
  AD_TRY(sum_tree(list, first, lower, by_leaves, numel, out));
  AD_TRY(ad_new(numel, &upper));
  ad_status status = sum_tree(list, first + lower, count - lower, by_leaves, numel, upper);
  if (!status) add_values(out, upper, numel);
  ad_release(upper);
  return status;
}

/* Lists the members' arrays that are addends of `result`: those of nodes inside the node `result`. If no leaves are
 * summed, and for ranks outside the right group, a rank's arrays are addends of the first result (`is_first`). Returns
 * their number. */
static size_t list_addends(const members *who, const ad_transit_passing *pass, const submitted *all, ad_node result,
                           int is_first, addend *list) {
  size_t listed = 0;
  ad_node nodes[AD_NODES_MAX];
  for (int64_t i = 0; i < who->count; i++) {
    int64_t rank = member_at(who, i);
    int is_known = ad_leaf_sums_given(pass, rank, nodes) && nodes[0].count;
    for (size_t k = 0; k < count_of(all, rank); k++) {
      addend own = {.node = is_known ? nodes[k] : (ad_node){0}};
      int is_within = own.node.first >= result.first && own.node.first < result.first + result.count;
      own.values = values_of(all, rank, k, &own.numel);
      if (is_known ? is_within : is_first) list[listed++] = own;
    }
  }
  return listed;
}

/* Returns 1 if the addends together are all leaves of `result`, each once. */
static int are_all_leaves(const addend *list, size_t count, ad_node result) {
  int64_t leaves = 0;
  for (size_t i = 0; i < count; i++) {
    if (!list[i].node.count) return 0;
    leaves += list[i].node.count;
  }
  return leaves && leaves == result.count;
}

/* Sums the members' addends of one result, and multiplies the sum by the operator's factor. */
static ad_status sum_members(const members *who, const ad_transit_passing *pass, const submitted *all, ad_node result,
                             int is_first, size_t numel, double *out) {
  size_t room = 0;
  addend *list;
  for (int64_t i = 0; i < who->count; i++) room += count_of(all, member_at(who, i));
  AD_TRY(ad_new(room, &list));
  size_t count = list_addends(who, pass, all, result, is_first, list);
  ad_status status = sum_tree(list, 0, count, are_all_leaves(list, count, result), numel, out);
  for (size_t k = 0; k < numel; k++) out[k] *= who->factor;
  ad_release(list);
  return status;
}

/* Returns the elements that a member of the right group has of a segment which the group shards by rows. `array` has the
 * rows of all members, of which there may be fewer than in the full segment, if other axes shard it, too. */
static stretch rows_of_member(const members *who, const ad_array *array, int segment, int64_t member) {
  size_t row = array->segments[segment].row;
  stretch all = stretch_of(array, ad_group_rank(&who->group, who->own), segment);
  ad_span rows = ad_cut(row ? (int64_t)(all.numel / row) : 0, member, ad_group_size(&who->group));
  return (stretch){(size_t)rows.first * row, (size_t)rows.count * row};
}

/* Copies this rank's part of a sum to `out`: of a segment, the rows that this rank stores; otherwise, its part of the
 * array. */
static void take_own_part(const members *who, ad_comm *comm, const ad_transit_passing *pass, int segment,
                          const double *sum, double *out) {
  if (segment >= 0) {
    stretch own = rows_of_member(who, pass->in, segment, who->own);
    memcpy(out, sum + own.start, own.numel * sizeof *out);
    return;
  }
  ad_part from, to;
  ad_part_of(&pass->in->layout, &pass->in->shape, ad_comm_rank(comm), &from);
  ad_part_of(&pass->out->layout, &pass->out->shape, ad_comm_rank(comm), &to);
  ad_part_copy(out, &to, sum, &from, &to, sizeof *out);
}

/* For a gather: copies each member's part to the position of the part that it replaces. A position that no member's
 * part replaces stays zero. */
static void place_parts(const members *who, ad_comm *comm, const ad_transit_passing *pass, int segment,
                        const submitted *all, double *out) {
  ad_part full, theirs, region;
  ad_part_of(&pass->out->layout, &pass->out->shape, ad_comm_rank(comm), &full);
  for (int64_t i = 0; i < who->count; i++) {
    int64_t rank = member_at(who, i);
    int64_t as = who->mutation->operator_ == AD_OPERATOR_OTHER_GROUP ? ad_group_rank(&who->group, i) : rank;
    size_t there;
    const double *values = values_of(all, rank, 0, &there);
    if (segment >= 0) {
      stretch to = rows_of_member(who, pass->out, segment, ad_group_index(&who->group, as));
      if (to.numel == there) memcpy(out + to.start, values, there * sizeof *out);
      continue;
    }
    ad_part_of(&pass->in->layout, &pass->in->shape, as, &theirs);
    ad_part_intersect(&full, &theirs, &region);
    if (ad_part_numel(&theirs) == there) ad_part_copy(out, &full, values, &theirs, &region, sizeof *out);
  }
}

/* Computes the wrong elements that this rank gets in `result`, in place of those of the right transition. */
static ad_status compute(const ad_mutation *mutation, const ad_transit_passing *pass, int segment, const submitted *all,
                         stretch in, const ad_node *result, int is_first, double *out) {
  members who = members_of(mutation, pass->comm, pass->in);
  ad_status status;
  double *sum;
  switch (pass->transit->move) {
    case AD_MOVE_ALL_REDUCE:
      return sum_members(&who, pass, all, *result, is_first, in.numel, out);
    case AD_MOVE_REDUCE_SCATTER:
      AD_TRY(ad_new(in.numel, &sum));
      status = sum_members(&who, pass, all, *result, is_first, in.numel, sum);
      if (!status) take_own_part(&who, pass->comm, pass, segment, sum, out);
      ad_release(sum);
      return status;
    case AD_MOVE_ONCE:
      read_values(pass->in, in, out);
      return AD_OK;
    default:
      place_parts(&who, pass->comm, pass, segment, all, out);
      return AD_OK;
  }
}

/* ---- executing a transition wrongly ---- */

/* Runs the transition without the mutation, and waits for it. */
static ad_status run_as_it_is(ad_transit_passing *pass) {
  if (!pass->request) return ad_transit_run(pass->comm, pass->transit, pass->in, pass->out);
  AD_TRY(ad_transit_post(pass->comm, pass->transit, pass->in, pass->out, pass->request));
  return ad_comm_wait(pass->comm, pass->request);
}

/* Runs the transition without the mutation and writes the wrong values over its results. If the transition adds to its
 * output, the wrong values are added to what was there before. */
static ad_status overwrite(const ad_mutation *mutation, ad_transit_passing *pass, int segment, const submitted *all,
                           stretch in) {
  stretch to = stretch_of(pass->out, ad_comm_rank(pass->comm), segment);
  ad_node results[AD_NODES_MAX];
  size_t count = ad_leaf_sums_taken(pass, results);
  double *instead, *before;
  AD_TRY(ad_new(2 * count * to.numel, &instead));
  before = instead + count * to.numel;
  if (pass->transit->adds) read_values(pass->out, to, before);
  ad_status status = AD_OK;
  for (size_t r = 0; !status && r < count; r++)
    status = compute(mutation, pass, segment, all, in, &results[r], !r, instead + r * to.numel);
  if (!status) status = run_as_it_is(pass);
  for (size_t i = 0; i < count * to.numel; i++) instead[i] += before[i];
  for (size_t r = 0; !status && r < count; r++) {
    stretch at = {to.start + r * ad_array_numel(pass->out), to.numel};
    write_values(pass->out, at, instead + r * to.numel);
  }
  ad_release(instead);
  return status;
}

/* Runs an exchange of rows by counts and keeps only the rows from this rank; rows from other ranks become zeros. */
static ad_status exchange_alone(ad_transit_passing *pass) {
  const ad_array *out = pass->out;
  ad_group group = ad_array_group(pass->comm, pass->in, pass->transit->axes);
  size_t own = (size_t)ad_group_index(&group, ad_comm_rank(pass->comm));
  size_t row = out->local.dim[0] ? ad_array_bytes(out) / (size_t)out->local.dim[0] : 0;
  const ad_row_order *order = &pass->transit->received;
  char *at = out->data;
  AD_TRY(run_as_it_is(pass));
  for (size_t i = 0; i < ad_row_runs(order, (size_t)ad_group_size(&group)); i++) {
    ad_row_run run = ad_row_run_at(order, pass->transit->receive_rows, i);
    if (run.member != own && run.rows) memset(at, 0, run.rows * row);
    at += run.rows * row;
  }
  return AD_OK;
}

static ad_status execute(const ad_mutation *mutation, ad_transit_passing *pass, int segment) {
  if (pass->transit->send_rows) return exchange_alone(pass);
  stretch in = stretch_of(pass->in, ad_comm_rank(pass->comm), segment);
  submitted all = {0};
  ad_status status = gather(pass, in, &all);
  if (!status) status = overwrite(mutation, pass, segment, &all, in);
  release_submitted(&all);
  return status;
}

/* ---- recording a wrong transition on the tape ---- */

static ad_axes changed_axes(const ad_mutation *mutation) {
  ad_axes axis = AD_AXES(mutation->axis);
  if (mutation->operator_ == AD_OPERATOR_MORE_AXES) return mutation->place.axes | axis;
  return mutation->operator_ == AD_OPERATOR_FEWER_AXES ? mutation->place.axes & ~axis : mutation->place.axes;
}

/* Describes the result of the mutated program: its layout and this rank's shape. */
static void describe_as(const ad_comm *comm, const ad_layout *layout, ad_array *out) {
  int64_t rank = ad_comm_rank(comm);
  out->layout = *layout;
  if (ad_array_is_packed(out))
    out->local.dim[0] = (int64_t)ad_packed_local(out, rank);
  else
    out->local = ad_layout_local_shape(layout, &out->shape, rank);
}

static ad_status try_in_record(const ad_mutation *mutation, ad_transit_passing *pass) {
  const ad_transit *transit = pass->transit;
  ad_layout from = pass->in->layout, after;
  if (mutation->operator_ == AD_OPERATOR_LEFT_OUT || mutation->operator_ == AD_OPERATOR_ONCE_EVERYWHERE) {
    describe_as(pass->comm, &from, pass->out);
    return AD_OK;
  }
  if (mutation->operator_ == AD_OPERATOR_DOUBLED) from = pass->out->layout;
  AD_TRY(ad_layout_after_at(&from, transit->move, changed_axes(mutation), transit->to, pass->in->shape.ndim, &after,
                            transit->site));
  describe_as(pass->comm, &after, pass->out);
  return AD_OK;
}

/* ---- the two injection points: each transition passes here, and the mutated one is replaced ---- */

static int find_segment(const ad_mutation *mutation, const ad_transit_passing *pass) {
  for (int i = 0; i < segments_of(pass->transit, pass->in); i++)
    if (!strcmp(pass->transit->names[i], mutation->place.what)) return i;
  return -1;
}

static int is_here(const ad_mutation *mutation, const ad_transit_passing *pass, int *segment) {
  *segment = mutation->place.is_segment ? find_segment(mutation, pass) : -1;
  if (mutation->place.is_segment && *segment < 0) return 0;
  ad_place passing = transit_place(pass->comm, pass->transit, pass->in, *segment);
  return same_place(&passing, &mutation->place);
}

static void pass_transit(void *context, void *passing) {
  ad_mutation *mutation = context;
  ad_transit_passing *pass = passing;
  int segment;
  if (!is_here(mutation, pass, &segment)) return;
  int first = mutation->executions++ == 0;
  mutation->fired = 1;
  if (mutation->operator_ == AD_OPERATOR_FIRST_MICROBATCH_ONLY && first) return;
  ad_lifted_injections lifted = ad_injections_lift();
  pass->handled = 1;
  pass->status = mutation->in_record ? try_in_record(mutation, pass) : execute(mutation, pass, segment);
  ad_injections_restore(&lifted);
}

/* On a tape: changes the transition before it is recorded, if it is the mutated one. */
static void pass_record(void *context, void *passing) {
  ad_mutation *mutation = context;
  ad_record_passing *pass = passing;
  const ad_place *place = &mutation->place;
  int is_other = place->phase != AD_PLACE_FORWARD || place->move != pass->move || place->ordinal != pass->ordinal;
  if (is_other || strcmp(place->what, pass->site)) return;
  mutation->fired = 1;
  mutation->of_constant = !pass->carries;
  pass->axes = changed_axes(mutation);
  pass->times = mutation->operator_ == AD_OPERATOR_DOUBLED ? 2 : 1;
  if (mutation->operator_ == AD_OPERATOR_LEFT_OUT || mutation->operator_ == AD_OPERATOR_ONCE_EVERYWHERE)
    pass->times = 0;
}

void ad_mutation_begin(ad_mutation *mutation) {
  mutation->executions = mutation->fired = mutation->of_constant = 0;
  if (mutation->in_record && mutation->place.phase == AD_PLACE_FORWARD)
    ad_injection_set(AD_INJECT_RECORD, (ad_injection){pass_record, mutation});
  else
    ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){pass_transit, mutation});
}
