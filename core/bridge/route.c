/* Computes which rank sends which rows of a batch to which rank. A rank's position on the axes that do not shard the
 * batch is its replica number. The ranks with one replica number are called a fibre: together they hold every part of
 * the batch once. */
#include "bridge/bridge.h"
#include "bridge/route.h"

/* Returns the rows that `rank` holds: one span, because dp axes do not shard zigzag. */
static ad_span part_of(const ad_layout *layout, int64_t rows, int64_t rank) {
  ad_span span;
  return ad_layout_spans(layout, 0, rows, rank, &span, 1) ? span : (ad_span){0, 0};
}

int ad_bridge_same_rows(const ad_layout *a, const ad_layout *b, int64_t rows, int64_t rank) {
  ad_span here, there;
  int of_a = ad_layout_spans(a, 0, rows, rank, &here, 1), of_b = ad_layout_spans(b, 0, rows, rank, &there, 1);
  return of_a == of_b && (!of_a || (here.first == there.first && here.count == there.count));
}

static ad_axes sharding_axes(const ad_layout *layout) { return ad_layout_sharded_axes(layout); }

/* Returns the ranks that hold replicas of `rank`'s part. */
static ad_group replicas_of(const ad_layout *layout, int64_t rank) {
  return ad_mesh_group(layout->mesh, AD_AXES_ALL & ~sharding_axes(layout), rank);
}

/* Returns the ranks with `rank`'s replica number, its fibre; together they hold the whole batch. */
static ad_group fibre_of(const ad_layout *layout, int64_t rank) {
  return ad_mesh_group(layout->mesh, sharding_axes(layout), rank);
}

/* Returns the rank that holds the first part in the replica with number `replica`. */
static int64_t first_of_replica(const ad_layout *layout, int64_t replica) {
  ad_group first = replicas_of(layout, ad_mesh_first_rank(layout->mesh));
  return ad_group_rank(&first, replica);
}

/* Returns the rank's replica number. */
static int64_t replica_of(const ad_layout *layout, int64_t rank) {
  ad_group replicas = replicas_of(layout, rank);
  return ad_group_index(&replicas, rank);
}

static int64_t replica_count(const ad_layout *layout) {
  ad_group replicas = replicas_of(layout, ad_mesh_first_rank(layout->mesh));
  return ad_group_size(&replicas);
}

/* Returns the fibre of `from` that sends the rows of `rank`, a rank of `to`. */
static ad_group givers(const ad_layout *from, const ad_layout *to, int64_t rank) {
  if (ad_mesh_has_rank(from->mesh, rank)) return fibre_of(from, rank);
  return fibre_of(from, first_of_replica(from, replica_of(to, rank) % replica_count(from)));
}

int ad_bridge_counts_there(const ad_layout *to, int64_t rank) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (to->type[axis] == AD_P && ad_mesh_position(to->mesh, rank, (ad_axis)axis)) return 0;
  return 1;
}

typedef struct list {
  ad_route *routes;
  size_t max, count;
} list;

/* Adds a route for the rows that are both in this rank's part and in the peer's part, if there are any. */
static void add_route(list *to, int64_t peer, ad_span mine, ad_span theirs) {
  int64_t first = mine.first > theirs.first ? mine.first : theirs.first;
  int64_t mine_end = mine.first + mine.count, theirs_end = theirs.first + theirs.count;
  int64_t end = mine_end < theirs_end ? mine_end : theirs_end;
  if (end <= first) return;
  if (to->count < to->max)
    to->routes[to->count] = (ad_route){peer, first - mine.first, first - theirs.first, end - first};
  to->count++;
}

/* Adds routes to all ranks of a fibre whose parts contain some of this rank's rows. */
static void add_fibre(list *to, const ad_group *fibre, const ad_layout *theirs, int64_t rows, ad_span mine) {
  for (int64_t i = 0; i < ad_group_size(fibre); i++) {
    int64_t peer = ad_group_rank(fibre, i);
    add_route(to, peer, mine, part_of(theirs, rows, peer));
  }
}

size_t ad_bridge_receives(const ad_layout *from, const ad_layout *to, int64_t rows, int64_t rank, ad_route *routes,
                          size_t max) {
  list found = {routes, max, 0};
  if (!ad_mesh_has_rank(to->mesh, rank) || !ad_bridge_counts_there(to, rank)) return 0;
  ad_group fibre = givers(from, to, rank);
  add_fibre(&found, &fibre, from, rows, part_of(to, rows, rank));
  return found.count;
}

size_t ad_bridge_sends(const ad_layout *from, const ad_layout *to, int64_t rows, int64_t rank, ad_route *routes,
                       size_t max) {
  list found = {routes, max, 0};
  if (!ad_mesh_has_rank(from->mesh, rank)) return 0;
  ad_span mine = part_of(from, rows, rank);
  if (ad_mesh_has_rank(to->mesh, rank)) {
    ad_group fibre = fibre_of(from, rank);
    add_fibre(&found, &fibre, to, rows, mine);
    return found.count;
  }
  for (int64_t replica = replica_of(from, rank); replica < replica_count(to); replica += replica_count(from)) {
    ad_group fibre = fibre_of(to, first_of_replica(to, replica));
    if (ad_bridge_counts_there(to, first_of_replica(to, replica))) add_fibre(&found, &fibre, to, rows, mine);
  }
  return found.count;
}
