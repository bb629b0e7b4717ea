/* Finds the kinds of ranks. The world is split into regions: ranges of ranks with the same meshes. A block is a set of
 * neighbouring axes that all meshes of a region have in common. The positions of a block whose parts have the same
 * sizes form a class. A choice takes one class of each block: its ranks have parts of the same sizes. A kind is one or
 * several choices. */
#include "plan/rank_kinds.h"
#include <stdlib.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"
#include "layout/nest.h"
#include "layout/type.h"
#include "plan/regions.h"
#include "mesh/mesh.h"

/* ---- the key of one rank: ranks with equal keys are of one kind ---- */

/* Returns the distance between the first and the last rank that have the same part of a value. */
static int64_t span_of(const ad_held *value) {
  ad_group group =
      ad_mesh_group(value->layout.mesh, ad_layout_same_axes(&value->layout), ad_mesh_first_rank(value->layout.mesh));
  return ad_group_rank(&group, ad_group_size(&group) - 1) - group.base;
}

/* Returns 1 if all ranks that have the same part of the value as `rank` are on one node. */
static int is_on_one_node(const ad_held *value, int64_t rank, int64_t ranks_per_node) {
  ad_group group = ad_mesh_group(value->layout.mesh, ad_layout_same_axes(&value->layout), rank);
  int64_t last = ad_group_rank(&group, ad_group_size(&group) - 1);
  return group.base / ranks_per_node == last / ranks_per_node;
}

/* Returns 1 if the rank is the first of the ranks that have the same part of the value. */
static int is_first_replica(const ad_held *value, int64_t rank) {
  return ad_mesh_group(value->layout.mesh, ad_layout_same_axes(&value->layout), rank).base == rank;
}

/* Mixes into the key everything on which the rank's bytes of one value depend. */
static uint64_t mix_value(uint64_t key, const ad_held *value, int64_t rank, int64_t ranks_per_node) {
  if (!ad_mesh_has_rank(value->layout.mesh, rank)) return ad_random_bits(key, 0, 0);
  ad_shape local = ad_layout_local_shape(&value->layout, &value->shape, rank);
  uint64_t facts = 1;
  facts |= (uint64_t)(value->is_written && is_first_replica(value, rank)) << 1;
  facts |= (uint64_t)(value->is_shared && is_on_one_node(value, rank, ranks_per_node)) << 2;
  key = ad_random_bits(key, facts, 0);
  for (int dim = 0; dim < local.ndim; dim++) key = ad_random_bits(key, (uint64_t)local.dim[dim], 1);
  return key;
}

uint64_t ad_rank_key(const ad_held *values, size_t count, int64_t rank, int64_t ranks_per_node) {
  uint64_t key = 0;
  for (size_t i = 0; i < count; i++) key = mix_value(key, &values[i], rank, ranks_per_node);
  return key;
}

/* ---- regions: ranges of ranks with the same meshes ---- */

static int by_number(const void *a, const void *b) {
  int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
  return (left > right) - (left < right);
}

static int64_t end_of(const ad_mesh *mesh) { return ad_mesh_first_rank(mesh) + ad_mesh_size(mesh); }

static int has_mesh(const region *r, const ad_mesh *mesh) {
  for (size_t i = 0; i < r->mesh_count; i++)
    if (ad_mesh_equal(r->meshes[i], mesh)) return 1;
  return 0;
}

/* Lists the meshes on the ranks of a region. Returns an error if meshes overlap only partly. */
static ad_status list_meshes(const ad_kinds *kinds, region *r) {
  for (size_t i = 0; i < kinds->value_count; i++) {
    const ad_mesh *mesh = kinds->values[i].layout.mesh;
    if (!ad_mesh_has_rank(mesh, r->first) || has_mesh(r, mesh)) continue;
    if (ad_mesh_first_rank(mesh) != r->first || ad_mesh_size(mesh) != r->size) {
      return ad_fail(AD_INVALID,
                     "the mesh \"%s\" of ranks %lld to %lld has some ranks of another mesh, but not all; two meshes "
                     "must have all ranks in common, or none",
                     ad_mesh_text(mesh), (long long)ad_mesh_first_rank(mesh), (long long)end_of(mesh) - 1);
    }
    AD_TRY(ad_grow(&r->meshes, r->mesh_count, r->mesh_count + 1));
    r->meshes[r->mesh_count++] = mesh;
  }
  return AD_OK;
}

/* Adds a region (a range of ranks with the same meshes) for the ranks between each two neighbouring `ends`. */
static ad_status add_regions(ad_kinds *kinds, const int64_t *ends, size_t count) {
  AD_TRY(ad_new(count, &kinds->regions));
  for (size_t i = 0; i + 1 < count; i++) {
    if (ends[i] == ends[i + 1]) continue;
    region *r = &kinds->regions[kinds->region_count++];
    *r = (region){.first = ends[i], .size = ends[i + 1] - ends[i]};
    AD_TRY(list_meshes(kinds, r));
  }
  return AD_OK;
}

/* Splits the ranks of the world into regions: wherever the ranks of a mesh begin or end, a region ends. */
static ad_status find_regions(ad_kinds *kinds) {
  int64_t *ends;
  size_t count = 0;
  AD_TRY(ad_new(2 * kinds->value_count + 2, &ends));
  ends[count++] = 0;
  ends[count++] = kinds->ranks;
  for (size_t i = 0; i < kinds->value_count; i++) {
    ends[count++] = ad_mesh_first_rank(kinds->values[i].layout.mesh);
    ends[count++] = end_of(kinds->values[i].layout.mesh);
  }
  qsort(ends, count, sizeof *ends, by_number);
  ad_status status = add_regions(kinds, ends, count);
  ad_release(ends);
  return status;
}

/* ---- blocks: sets of axes that a region's meshes share ---- */

/* Returns 1 if every `ranks` neighbouring ranks form a group over the fastest axes of the mesh. */
static int has_boundary(const ad_mesh *mesh, int64_t ranks) {
  ad_axes large = ad_mesh_large(mesh);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    int64_t stride = ad_mesh_stride(mesh, (ad_axis)axis);
    if ((large & AD_AXES(axis)) && (stride == ranks || stride * ad_mesh_axis_size(mesh, (ad_axis)axis) == ranks))
      return 1;
  }
  return ranks == 1;
}

/* Returns 1 if, on every mesh in the region, every `ranks` neighbouring ranks form a group over the mesh's fastest
 * axes. */
static int is_common(const region *r, int64_t ranks) {
  for (size_t i = 0; i < r->mesh_count; i++)
    if (!has_boundary(r->meshes[i], ranks)) return 0;
  return 1;
}

/* Lists the strides of a region's blocks in ascending order, followed by the region's size. Returns the number of
 * blocks. */
static int find_boundaries(const region *r, int64_t strides[BLOCKS_MAX + 1]) {
  int64_t all[AD_AXIS_COUNT + 2] = {1, r->size};
  int candidates = 2, count = 0;
  for (int axis = 0; axis < AD_AXIS_COUNT && r->mesh_count; axis++) {
    int64_t stride = ad_mesh_stride(r->meshes[0], (ad_axis)axis);
    if (stride < r->size && is_common(r, stride)) all[candidates++] = stride;
  }
  qsort(all, (size_t)candidates, sizeof *all, by_number);
  for (int i = 0; i < candidates; i++)
    if (!count || strides[count - 1] != all[i]) strides[count++] = all[i];
  return count - 1;
}

/* ---- the cuts along an axis ---- */

/* A list of cuts. Each cut splits a dimension into parts. No cut is listed twice. */
typedef struct cuts {
  ad_cut_asked *list;
  size_t count;
} cuts;

static ad_status add_cut(cuts *to, ad_cut_asked cut) {
  for (size_t i = 0; i < to->count; i++)
    if (to->list[i].n == cut.n && to->list[i].zigzag == cut.zigzag) return AD_OK;
  AD_TRY(ad_grow(&to->list, to->count, to->count + 1));
  to->list[to->count++] = cut;
  return AD_OK;
}

/* The range of sizes that the parts of a dimension have before it is cut again. A floor cut makes parts of at most two
 * consecutive sizes, a zigzag cut of at most three. */
typedef struct sizes {
  int64_t least, most;
} sizes;

static sizes after_cut(sizes before, int zigzag, int64_t g) {
  int64_t chunks = zigzag ? 2 * g : g, per_rank = zigzag ? 2 : 1;
  return (sizes){before.least / chunks * per_rank, (before.most + chunks - 1) / chunks * per_rank};
}

/* Adds the cuts that an axis makes in one dimension of a value, for every size that the dimension may have after the
 * cuts of outer axes. */
static ad_status add_cuts_of(const ad_held *value, int dim, ad_axis axis, cuts *to) {
  const ad_layout *layout = &value->layout;
  sizes arriving = {value->shape.dim[dim], value->shape.dim[dim]};
  for (int depth = 0; depth < __builtin_popcount(ad_layout_axes_sharding(layout, dim)); depth++) {
    ad_axis at = ad_layout_sharded_at(layout, dim, depth);
    int zigzag = ad_type_is_zigzag(layout->type[at]);
    for (int64_t n = arriving.least; at == axis && n <= arriving.most; n++)
      AD_TRY(add_cut(to, (ad_cut_asked){n, zigzag}));
    arriving = after_cut(arriving, zigzag, ad_mesh_axis_size(layout->mesh, at));
  }
  return AD_OK;
}

/* Adds the cuts that an axis makes in all values on the mesh. Sets *apart to 1 if position 0 is a class of its own,
 * because the rank at position 0 writes the checkpoint. */
static ad_status find_cuts(const ad_kinds *kinds, const ad_mesh *mesh, ad_axis axis, cuts *to, int *apart) {
  for (size_t i = 0; i < kinds->value_count; i++) {
    const ad_held *value = &kinds->values[i];
    if (!ad_mesh_equal(value->layout.mesh, mesh)) continue;
    for (int dim = 0; dim < value->shape.ndim; dim++) AD_TRY(add_cuts_of(value, dim, axis, to));
    *apart |= value->is_written && (ad_layout_same_axes(&value->layout) & AD_AXES(axis));
  }
  return AD_OK;
}

/* ---- the classes of a block's positions ---- */

static ad_status axis_positions(const ad_kinds *kinds, const ad_mesh *mesh, ad_axis axis, ad_positions *out) {
  cuts list = {0};
  int apart = 0;
  ad_status status = find_cuts(kinds, mesh, axis, &list, &apart);
  if (!status) status = ad_positions_of(ad_mesh_axis_size(mesh, axis), list.list, list.count, apart, out);
  ad_release(list.list);
  return status;
}

/* Returns the axis whose neighbouring positions are `stride` ranks apart, or AD_AXIS_COUNT if there is none. */
static ad_axis axis_at(const ad_mesh *mesh, int64_t stride) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    int is_large = (ad_mesh_large(mesh) & AD_AXES(axis)) != 0;
    if (is_large && ad_mesh_stride(mesh, (ad_axis)axis) == stride) return (ad_axis)axis;
  }
  return AD_AXIS_COUNT;
}

/* Finds the classes of positions on those axes of one mesh that have strides in [stride, end). */
static ad_status mesh_positions(const ad_kinds *kinds, const ad_mesh *mesh, int64_t stride, int64_t end,
                                ad_positions *out) {
  ad_positions fast, slow;
  AD_TRY(ad_positions_of(1, NULL, 0, 0, &fast));
  while (stride < end) {
    ad_axis axis = axis_at(mesh, stride);
    ad_status status = axis_positions(kinds, mesh, axis, &slow);
    if (status) {
      ad_positions_release(&fast);
      return status;
    }
    AD_TRY(ad_positions_nest(&slow, &fast, &fast));
    stride *= ad_mesh_axis_size(mesh, axis);
  }
  *out = fast;
  return AD_OK;
}

/* Finds the classes of positions of a block. Two positions are in one class if, for every mesh, they are in one
 * class. */
static ad_status block_positions(const ad_kinds *kinds, const region *r, int64_t stride, int64_t end,
                                 ad_positions *out) {
  ad_positions all, own;
  AD_TRY(ad_positions_of(end / stride, NULL, 0, 0, &all));
  for (size_t i = 0; i < r->mesh_count; i++) {
    ad_status status = mesh_positions(kinds, r->meshes[i], stride, end, &own);
    if (status) {
      ad_positions_release(&all);
      return status;
    }
    AD_TRY(ad_positions_join(&all, &own, &all));
  }
  *out = all;
  return AD_OK;
}

/* Finds, for each class, its first position, and counts its positions. */
static ad_status count_classes(block *b) {
  const ad_positions *positions = &b->positions;
  AD_TRY(ad_new((size_t)positions->classes, &b->first));
  AD_TRY(ad_new((size_t)positions->classes, &b->count));
  for (size_t i = positions->count; i-- > 0;) {
    const ad_run_of_positions *run = &positions->runs[i];
    b->first[run->class] = run->first;
    b->count[run->class] += run->count;
  }
  return AD_OK;
}

static ad_status find_blocks(const ad_kinds *kinds, region *r) {
  int64_t strides[AD_AXIS_COUNT + 2];
  int count = find_boundaries(r, strides);
  r->choices = 1;
  for (int i = count; i-- > 0;) {
    block *b = &r->blocks[r->block_count++];
    b->stride = strides[i];
    AD_TRY(block_positions(kinds, r, strides[i], strides[i + 1], &b->positions));
    AD_TRY(count_classes(b));
    if ((size_t)b->positions.classes > CHOICES_MAX / r->choices) {
      return ad_fail(AD_INVALID,
                     "the plan has more than %d different kinds of ranks, because values are sharded in too many ways; "
                     "choose sizes that the mesh axes divide",
                     CHOICES_MAX);
    }
    r->choices *= (size_t)b->positions.classes;
  }
  return AD_OK;
}

/* ---- choices: one class of each block ---- */

void ad_choice_classes(const region *r, size_t number, int64_t class[BLOCKS_MAX]) {
  for (int i = r->block_count; i-- > 0;) {
    size_t classes = (size_t)r->blocks[i].positions.classes;
    class[i] = (int64_t)(number % classes);
    number /= classes;
  }
}

/* Returns the choice (one class of each block) with index `number`: its first rank, its number of ranks, and its
 * key. */
static choice choose(const ad_kinds *kinds, const region *r, size_t number) {
  int64_t class[BLOCKS_MAX];
  choice chosen = {.first = r->first, .ranks = 1, .number = r->first_choice + number};
  ad_choice_classes(r, number, class);
  for (int i = 0; i < r->block_count; i++) {
    chosen.first += r->blocks[i].first[class[i]] * r->blocks[i].stride;
    chosen.ranks *= r->blocks[i].count[class[i]];
  }
  chosen.key = ad_rank_key(kinds->values, kinds->value_count, chosen.first, kinds->ranks_per_node);
  return chosen;
}

static ad_status list_choices(ad_kinds *kinds) {
  for (size_t i = 0; i < kinds->region_count; i++) {
    kinds->regions[i].first_choice = kinds->choice_count;
    kinds->choice_count += kinds->regions[i].choices;
  }
  AD_TRY(ad_new(kinds->choice_count, &kinds->choices));
  for (size_t i = 0; i < kinds->region_count; i++) {
    const region *r = &kinds->regions[i];
    for (size_t c = 0; c < r->choices; c++) kinds->choices[r->first_choice + c] = choose(kinds, r, c);
  }
  return AD_OK;
}

/* ---- kinds: choices with the same key ---- */

static int by_key(const void *a, const void *b) {
  const choice *left = a, *right = b;
  if (left->key != right->key) return left->key < right->key ? -1 : 1;
  return (left->first > right->first) - (left->first < right->first);
}

static int by_choice(const void *a, const void *b) {
  const choice *left = a, *right = b;
  return (left->number > right->number) - (left->number < right->number);
}

static int by_first(const void *a, const void *b) {
  return by_number(a, b);
} /* valid because `first` is the first member of ad_rank_kind */

static int by_kind(const void *a, const void *b) {
  const ad_rank_kind *left = a, *right = b;
  return (left->key > right->key) - (left->key < right->key);
}

/* Makes a kind of all choices that have the same key. */
static ad_status gather_kinds(ad_kinds *kinds) {
  qsort(kinds->choices, kinds->choice_count, sizeof *kinds->choices, by_key);
  AD_TRY(ad_new(kinds->choice_count, &kinds->list));
  for (size_t i = 0; i < kinds->choice_count; i++) {
    choice *c = &kinds->choices[i];
    if (!kinds->count || kinds->list[kinds->count - 1].key != c->key)
      kinds->list[kinds->count++] = (ad_rank_kind){.first = c->first, .key = c->key};
    kinds->list[kinds->count - 1].ranks += c->ranks;
  }
  return AD_OK;
}

/* Sorts kinds by first rank, and choices by their index, and stores in each choice the index of its kind. */
static ad_status number_kinds(ad_kinds *kinds) {
  typedef struct numbered {
    ad_rank_kind kind;
    size_t number;
  } numbered;
  numbered *sorted;
  AD_TRY(ad_new(kinds->count, &sorted));
  qsort(kinds->list, kinds->count, sizeof *kinds->list, by_first);
  for (size_t i = 0; i < kinds->count; i++) sorted[i] = (numbered){kinds->list[i], i};
  qsort(sorted, kinds->count, sizeof *sorted, by_kind);
  for (size_t i = 0; i < kinds->choice_count; i++) {
    ad_rank_kind wanted = {.key = kinds->choices[i].key};
    const numbered *found = bsearch(&wanted, sorted, kinds->count, sizeof *sorted, by_kind);
    kinds->choices[i].kind = found->number;
  }
  qsort(kinds->choices, kinds->choice_count, sizeof *kinds->choices, by_choice);
  ad_release(sorted);
  return AD_OK;
}

/* ---- copies that are shared on a node ---- */

/* Returns 1 if each node begins and ends where the axis, or one of its positions, begins or ends. Then either every
 * group over the axis is on one node, or no group is. */
static int fits_nodes(const ad_mesh *mesh, ad_axis axis, int64_t ranks_per_node) {
  int64_t stride = ad_mesh_stride(mesh, axis), whole = stride * ad_mesh_axis_size(mesh, axis);
  int is_outermost = whole == ad_mesh_size(mesh);
  if (ad_mesh_first_rank(mesh) % ranks_per_node) return 0;
  if (whole <= ranks_per_node) return ranks_per_node % whole == 0 || is_outermost;
  return stride % ranks_per_node == 0 ||
         (ranks_per_node % stride == 0 && (is_outermost || whole % ranks_per_node == 0));
}

/* Returns 1 if either all ranks share copies of the value on their nodes, or no rank does. */
static int shares_equally(const ad_held *value, int64_t ranks_per_node) {
  const ad_mesh *mesh = value->layout.mesh;
  ad_axes axes = ad_layout_same_axes(&value->layout) & ad_mesh_large(mesh);
  int64_t span = span_of(value);
  if (!span || span >= ranks_per_node) return 1;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if ((axes & AD_AXES(axis)) && !fits_nodes(mesh, (ad_axis)axis, ranks_per_node)) return 0;
  return 1;
}

/* Refuses a number of ranks per node with which only some ranks share copies: a rank's kind would then depend on its
 * node. */
static ad_status check_shared(const ad_kinds *kinds) {
  for (size_t i = 0; i < kinds->value_count && kinds->ranks_per_node < kinds->ranks; i++) {
    const ad_held *value = &kinds->values[i];
    char axes[96];
    if (!value->is_shared || shares_equally(value, kinds->ranks_per_node)) continue;
    ad_axes replicas = ad_layout_same_axes(&value->layout) & ad_mesh_large(value->layout.mesh);
    return ad_fail(
        AD_INVALID,
        "with %lld ranks per node, some groups of ranks over %s of \"%s\" are on one node and others on two; choose a "
        "number of ranks per node that divides the size of such a group, or is a multiple of its size",
        (long long)kinds->ranks_per_node, ad_axes_print(replicas, axes, sizeof axes), ad_mesh_text(value->layout.mesh));
  }
  return AD_OK;
}

/* ---- finding the kinds of ranks ---- */

static ad_status find_all_kinds(ad_kinds *kinds) {
  AD_TRY(check_shared(kinds));
  AD_TRY(find_regions(kinds));
  for (size_t i = 0; i < kinds->region_count; i++) AD_TRY(find_blocks(kinds, &kinds->regions[i]));
  AD_TRY(list_choices(kinds));
  AD_TRY(gather_kinds(kinds));
  return number_kinds(kinds);
}

ad_status ad_kinds_find(const ad_held *values, size_t count, int64_t ranks, int64_t ranks_per_node, ad_kinds **out) {
  ad_kinds *kinds;
  AD_TRY(ad_new(1, &kinds));
  *kinds = (ad_kinds){.values = values, .value_count = count, .ranks = ranks, .ranks_per_node = ranks_per_node};
  ad_status status = find_all_kinds(kinds);
  if (status)
    ad_kinds_destroy(kinds);
  else
    *out = kinds;
  return status;
}

void ad_kinds_destroy(ad_kinds *kinds) {
  if (!kinds) return;
  for (size_t i = 0; i < kinds->region_count; i++) {
    region *r = &kinds->regions[i];
    for (int k = 0; k < r->block_count; k++) {
      ad_positions_release(&r->blocks[k].positions);
      ad_release(r->blocks[k].first);
      ad_release(r->blocks[k].count);
    }
    ad_release(r->meshes);
  }
  ad_release(kinds->regions);
  ad_release(kinds->choices);
  ad_release(kinds->list);
  ad_release(kinds);
}

size_t ad_kinds_count(const ad_kinds *kinds) { return kinds->count; }
const ad_rank_kind *ad_kinds_at(const ad_kinds *kinds, size_t index) { return &kinds->list[index]; }
