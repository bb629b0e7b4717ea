/* Tests bridges between two meshes of the same shape: each rank's part goes to the rank at the same position, whatever
 * its types; values and gradients may be posted in any order; and messages of what is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "addend/bridge.h"
#include "base/random.h"
#include "bridge/known_bugs.h"
#include "ranks.h"
#include "says.h"

#define must(call) assert_int_equal((call), AD_OK)
#define COUNT(list) (sizeof(list) / sizeof *(list))

typedef struct world {
  const char *mesh, *layout;
  int64_t source, destination, ranks; /* the first rank of each mesh, and the number of ranks in the world */
  ad_shape shape;
  ad_dtype dtype; /* 0: f64 */
} world;

typedef struct sides {
  ad_comm *comm;
  const world *world;
  ad_mesh *a, *b;
  ad_bridge *bridge;
} sides;

static ad_dtype dtype_of(const world *w) { return w->dtype ? w->dtype : AD_F64; }

/* The bridge between both meshes, with the layouts that the world says. */
static ad_bridge *bridge_of(ad_comm *comm, const world *w, const ad_mesh *a, const ad_mesh *b, int64_t tag) {
  ad_layout from, to;
  ad_bridge *bridge;
  ad_bridge_options options = {.size = sizeof options, .identical = 1, .tag = tag};
  CHECK_OK(ad_layout_parse(a, w->layout, &from));
  CHECK_OK(ad_layout_parse(b, w->layout, &to));
  CHECK_OK(ad_bridge_check(&from, &to, &options));
  CHECK_OK(ad_bridge_create(comm, &from, &to, &options, &bridge));
  return bridge;
}

static sides open_sides(ad_comm *comm, const world *w) {
  sides s = {.comm = comm, .world = w};
  CHECK_OK(ad_mesh_create_pool(w->mesh, w->source, &s.a));
  CHECK_OK(ad_mesh_create_pool(w->mesh, w->destination, &s.b));
  s.bridge = bridge_of(comm, w, s.a, s.b, 3);
  return s;
}

static void close_sides(sides *s) {
  ad_bridge_destroy(s->bridge);
  ad_mesh_destroy(s->a);
  ad_mesh_destroy(s->b);
}

/* ---- values: different for each position in the mesh, each stream and each element ---- */

static int64_t position_on(const ad_mesh *mesh, int64_t rank) {
  ad_group all = ad_mesh_group(mesh, AD_AXES_ALL, rank);
  return ad_group_index(&all, rank);
}

static void fill(const ad_array *array, int64_t position, uint64_t stream) {
  for (size_t i = 0; i < ad_array_numel(array); i++)
    ad_array_set(array, i, ad_random_normal(7, 1000 * stream + (uint64_t)position, i));
}

/* Allocates an array between red zones; none if the part is empty or this rank is not on that side. */
static ad_array made(const ad_array *described) {
  ad_array array = *described;
  if (array.layout.mesh && ad_array_numel(&array)) array.data = rank_memory(ad_array_bytes(&array));
  return array;
}

static ad_array filled(const sides *s, const ad_array *described, uint64_t stream) {
  ad_array array = made(described);
  if (array.layout.mesh) fill(&array, position_on(array.layout.mesh, ad_comm_rank(s->comm)), stream);
  return array;
}

static void forget(ad_array *array) {
  if (!array->data) return;
  rank_memory_check(array->data);
  rank_memory_free(array->data);
}

static int differs(const sides *s, const ad_array *array, uint64_t stream) {
  ad_array wanted = filled(s, array, stream);
  int is_other = wanted.data && memcmp(array->data, wanted.data, ad_array_bytes(array)) != 0;
  forget(&wanted);
  return is_other;
}

static void holds(const sides *s, const ad_array *array, uint64_t stream) { CHECK(!differs(s, array, stream)); }

/* ---- forward and backward ---- */

static void go_forward(sides *s, uint64_t stream) {
  ad_array from, to;
  CHECK_OK(ad_bridge_describe(s->bridge, dtype_of(s->world), &s->world->shape, AD_FORWARD, &from, &to));
  ad_array source = filled(s, &from, stream), destination = made(&to);
  CHECK_OK(ad_bridge_forward(s->bridge, &source, &destination));
  holds(s, &source, stream);
  holds(s, &destination, stream);
  forget(&source);
  forget(&destination);
}

/* Sends gradients back. Addends of an R value return as addends: each to the rank at the same position. */
static void go_back(sides *s, uint64_t stream) {
  ad_array from, to;
  CHECK_OK(ad_bridge_describe(s->bridge, dtype_of(s->world), &s->world->shape, AD_BACKWARD, &from, &to));
  ad_array source = made(&from), destination = filled(s, &to, stream);
  CHECK_OK(ad_bridge_backward(s->bridge, &destination, &source));
  holds(s, &destination, stream);
  holds(s, &source, stream);
  forget(&source);
  forget(&destination);
}

static int there_and_back(ad_comm *comm, void *context) {
  sides s = open_sides(comm, context);
  for (uint64_t turn = 0; turn < 3; turn++) {
    go_forward(&s, 1 + turn);
    go_back(&s, 10 + turn);
  }
  close_sides(&s);
  return 0;
}

static const world worlds[] = {
    {"dp=2 cp=3 tp=2", "dp=S0 cp=S1z tp=I", 0, 12, 24, {3, {5, 13, 3}}, 0}, /* the residual stream of a transformer */
    {"dp=2 cp=1 tp=2", "dp=S0 cp=S1z tp=S1", 0, 4, 8, {3, {3, 9, 2}}, 0},
    {"dp=1 cp=3 tp=2", "dp=R cp=R tp=S0", 0, 6, 12, {2, {5, 2}}, 0}, /* a parameter */
    {"tp=2 dp=3", "dp=R tp=S1", 0, 6, 12, {2, {2, 3}}, 0},
    {"dp=3 tp=2", "dp=S0 tp=S0", 0, 6, 12, {2, {11, 2}}, 0}, /* one dimension, sharded by two axes */
    {"dp=3", "dp=S0", 4, 0, 8, {2, {7, 2}}, AD_BF16},        /* towards lower ranks, with ranks on neither side */
    {"dp=3", "dp=S0", 0, 3, 6, {2, {2, 4}}, 0},              /* one rank has no element */
    {"dp=3 tp=1", "dp=S0 tp=R", 0, 3, 6, {2, {0, 4}}, AD_F32},
    {"dp=2", "dp=V", 0, 2, 4, {6, {3, 1, 2, 1, 2, 2}}, AD_F16},
    {"tp=3", "tp=I", 1, 5, 8, {0, {0}}, 0}, /* a scalar */
    {"pp=3", "pp=I", 0, 3, 6, {1, {4}}, AD_I64},
    {"dp_replicate=2 cp=2", "dp_replicate=S0 cp=S0", 0, 4, 8, {2, {7, 3}}, 0},
    {"dp=1", "dp=R", 0, 1, 2, {1, {5}}, 0},
    {"dp=2 cp=3", "dp=S0 cp=S1z", 0, 0, 6, {2, {3, 13}}, 0}, /* both meshes have the same ranks */
    {"dp=3 tp=1", "dp=R tp=S0", 2, 2, 6, {2, {4, 2}}, AD_BF16},
    {"tp=3", "tp=R", 0, 0, 3, {0, {0}}, 0},
};

static void each_part_goes_to_its_position_and_comes_back(void **state) {
  for (size_t i = 0; i < COUNT(worlds); i++) run_ranks(worlds[i].ranks, there_and_back, (void *)&worlds[i]);
}

/* A transfer without elements is received too, so that the next part is not taken for it. */
static int next_has_elements(ad_comm *comm, void *context) {
  world w = *(const world *)context;
  sides s = open_sides(comm, &w);
  for (int64_t rows = 0; rows < 8; rows++) {
    w.shape.dim[0] = rows;
    go_forward(&s, 1);
    go_back(&s, 2);
  }
  close_sides(&s);
  return 0;
}

static void an_empty_part_takes_its_turn(void **state) {
  static world w = {"dp=3", "dp=S0", 0, 3, 6, {2, {0, 4}}, 0};
  run_ranks(w.ranks, next_has_elements, &w);
}

/* ---- values and gradients of several microbatches, posted in any order ---- */

enum { MICROBATCHES = 3, BRIDGES = 2, KINDS = 2, POSTS = MICROBATCHES * BRIDGES * KINDS };

/* The transfer of one value, or of one gradient, of one microbatch over one bridge. */
typedef struct post {
  int bridge, back, microbatch;
  ad_array source, destination;
  ad_request request;
} post;

static uint64_t stream_of(const post *p) { return 1 + (uint64_t)(p->microbatch * 4 + p->back * 2 + p->bridge); }

static post post_of(const sides *s, ad_bridge *const *bridges, int bridge, int back, int microbatch) {
  post p = {.bridge = bridge, .back = back, .microbatch = microbatch};
  ad_array from, to;
  CHECK_OK(ad_bridge_describe(bridges[bridge], AD_F64, &s->world->shape, back ? AD_BACKWARD : AD_FORWARD, &from, &to));
  p.source = back ? made(&from) : filled(s, &from, stream_of(&p));
  p.destination = back ? filled(s, &to, stream_of(&p)) : made(&to);
  return p;
}

static void start(ad_bridge *const *bridges, post *p) {
  if (p->back)
    CHECK_OK(ad_bridge_post_backward(bridges[p->bridge], &p->destination, &p->source, &p->request));
  else
    CHECK_OK(ad_bridge_post_forward(bridges[p->bridge], &p->source, &p->destination, &p->request));
}

/* Posts all transfers in an order drawn by each rank; microbatches of one bridge and direction keep their order. */
static void start_all(ad_bridge *const *bridges, post posts[BRIDGES][KINDS][MICROBATCHES], uint64_t stream) {
  int next[BRIDGES][KINDS] = {0};
  for (uint64_t drawn = 0, left = POSTS; left > 0; drawn++) {
    uint64_t bits = ad_random_bits(11, stream, drawn);
    int bridge = (int)(bits & 1), back = (int)(bits >> 1 & 1);
    if (next[bridge][back] == MICROBATCHES) continue;
    start(bridges, &posts[bridge][back][next[bridge][back]++]);
    left--;
  }
}

static void end(const sides *s, post *p) {
  CHECK_OK(ad_comm_wait(s->comm, &p->request));
  holds(s, &p->source, stream_of(p));
  holds(s, &p->destination, stream_of(p));
  forget(&p->source);
  forget(&p->destination);
}

static int in_any_order(ad_comm *comm, void *context) {
  sides s = open_sides(comm, context);
  ad_bridge *bridges[BRIDGES] = {s.bridge, bridge_of(comm, context, s.a, s.b, 4)};
  post posts[BRIDGES][KINDS][MICROBATCHES];
  for (int i = 0; i < POSTS; i++) posts[i / 6][i / 3 % 2][i % 3] = post_of(&s, bridges, i / 6, i / 3 % 2, i % 3);
  start_all(bridges, posts, (uint64_t)ad_comm_rank(comm));
  for (int i = POSTS - 1; i >= 0; i--) end(&s, &posts[i / 6][i / 3 % 2][i % 3]);
  ad_bridge_destroy(bridges[1]);
  close_sides(&s);
  return 0;
}

static void values_and_gradients_of_two_bridges_are_posted_in_any_order(void **state) {
  for (int hostile = 0; hostile < 2; hostile++) {
    if (hostile) setenv("ADDEND_HOSTILE", "7", 1);
    for (size_t i = 0; i < COUNT(worlds); i++)
      if (!worlds[i].dtype) run_ranks(worlds[i].ranks, in_any_order, (void *)&worlds[i]);
  }
  unsetenv("ADDEND_HOSTILE");
}

/* The source posts its values and then waits for gradients; the destination posts the gradients first. */
static int from_opposite_ends(ad_comm *comm, void *context) {
  sides s = open_sides(comm, context);
  int is_source = ad_bridge_has_source(s.bridge);
  post value = post_of(&s, &s.bridge, 0, 0, 0), gradient = post_of(&s, &s.bridge, 0, 1, 0);
  start(&s.bridge, is_source ? &value : &gradient);
  CHECK_OK(ad_comm_barrier(comm, &(ad_group){ad_comm_mesh(comm), AD_AXES_ALL, 0}));
  start(&s.bridge, is_source ? &gradient : &value);
  end(&s, is_source ? &gradient : &value);
  end(&s, is_source ? &value : &gradient);
  close_sides(&s);
  return 0;
}

static void sides_may_begin_at_opposite_ends(void **state) {
  static world w = {"dp=3 tp=1", "dp=S0 tp=R", 0, 3, 6, {2, {7, 2}}, 0};
  run_ranks(w.ranks, from_opposite_ends, &w);
}

/* Two bridges in opposite directions: values of one bridge (tag 3) and gradients of the other go between the same
 * ranks. */
typedef struct circle {
  world world;
  int64_t tag; /* tag of the other bridge */
} circle;

static int around(ad_comm *comm, void *context) {
  const circle *c = context;
  const world *w = &c->world;
  sides s = open_sides(comm, w);
  ad_bridge *bridges[] = {s.bridge, bridge_of(comm, w, s.b, s.a, c->tag)};
  post value = post_of(&s, bridges, 0, 0, 0), gradient = post_of(&s, bridges, 1, 1, 0);
  int is_source = ad_bridge_has_source(s.bridge);
  start(bridges, is_source ? &value : &gradient);
  start(bridges, is_source ? &gradient : &value);
  end(&s, &value);
  end(&s, &gradient);
  ad_bridge_destroy(bridges[1]);
  close_sides(&s);
  return 0;
}

static void a_bridge_there_and_one_back_may_have_any_tags(void **state) {
  static circle c = {{"dp=3 tp=1", "dp=S0 tp=R", 0, 3, 6, {2, {7, 2}}, 0}, 0};
  for (c.tag = 2; c.tag <= 4; c.tag++) run_ranks(c.world.ranks, around, &c);
}

static int with_other_shapes(ad_comm *comm, void *context) {
  sides s = open_sides(comm, context);
  ad_array from, to;
  ad_shape shape = {1, {ad_bridge_has_source(s.bridge) ? 4 : 0}};
  CHECK_OK(ad_bridge_describe(s.bridge, AD_F64, &shape, AD_FORWARD, &from, &to));
  ad_array source = filled(&s, &from, 1), destination = made(&to);
  ad_status status = ad_bridge_forward(s.bridge, &source, &destination);
  if (!status)
    // a send's data has been copied, so its buffer may change
    status = ad_comm_barrier(comm, &(ad_group){ad_comm_mesh(comm), AD_AXES_ALL, 0});
  CHECK(status == AD_MISMATCH);
  CHECK_SAYS("4", "f64");
  CHECK_SAYS("0", "f64");
  forget(&source);
  forget(&destination);
  close_sides(&s);
  return 0;
}

static void a_part_and_none_do_not_match(void **state) {
  static world w = {"tp=1", "tp=I", 0, 1, 2, {1, {4}}, 0};
  run_ranks(w.ranks, with_other_shapes, &w);
}

/* ---- what a rank knows without communication ---- */

static void nothing_is_summed_and_any_batch_divides(void **state) {
  static const world whole = {"dp=2 tp=2", "dp=R tp=S0", 0, 4, 8, {2, {4, 2}}, 0};
  ad_comm *comm;
  int64_t multiple = 0;
  ad_bridge_options identical = {.size = sizeof identical, .identical = 1};
  must(ad_comm_open_dry(0, 8, &comm));
  sides s = open_sides(comm, &whole);
  ad_layout from = ad_bridge_from(s.bridge), to = ad_bridge_to(s.bridge), arrives = ad_bridge_arrives(s.bridge);
  assert_int_equal(ad_bridge_added(s.bridge), 0);
  assert_true(ad_layout_equal(&arrives, &to));
  must(ad_bridge_rows_multiple(&from, &to, &identical, &multiple));
  assert_int_equal(multiple, 1);
  assert_false(ad_bridge_is_local(s.bridge, 4));
  close_sides(&s);
  ad_comm_close(comm);
}

static void a_gradient_is_of_the_dual_types(void **state) {
  static const world w = {"dp=2 cp=2 tp=2", "dp=R cp=I tp=S0", 0, 8, 16, {2, {5, 2}}, 0};
  ad_comm *comm;
  ad_array source, destination;
  must(ad_comm_open_dry(9, 16, &comm));
  sides s = open_sides(comm, &w);
  must(ad_bridge_describe(s.bridge, AD_F32, &w.shape, AD_BACKWARD, &source, &destination));
  assert_null(source.layout.mesh);
  ad_axes meant = ad_mesh_named(s.b);
  assert_int_equal(ad_layout_axes_of(&destination.layout, AD_P) & meant, AD_AXES(AD_DP_SHARD));
  assert_int_equal(ad_layout_axes_of(&destination.layout, AD_I) & meant, AD_AXES(AD_CP));
  assert_int_equal(ad_layout_axes_of(&destination.layout, AD_S(0)) & meant, AD_AXES(AD_TP));
  assert_int_equal(destination.local.dim[0], 3);
  close_sides(&s);
  ad_comm_close(comm);
}

static void on_backend_dry_nothing_moves(void **state) {
  static const world w = {"dp=3", "dp=S0", 0, 3, 6, {1, {7}}, 0};
  ad_comm *comm;
  ad_array source, destination;
  ad_request request;
  must(ad_comm_open_dry(1, 6, &comm));
  sides s = open_sides(comm, &w);
  must(ad_bridge_describe(s.bridge, AD_F64, &w.shape, AD_FORWARD, &source, &destination));
  must(ad_bridge_forward(s.bridge, &source, &destination));
  must(ad_bridge_post_forward(s.bridge, &source, &destination, &request));
  must(ad_comm_wait(comm, &request));
  assert_int_equal(ad_comm_bytes(comm), 0);
  close_sides(&s);
  ad_comm_close(comm);
}

/* A bridge between equal meshes on the same ranks moves nothing: the source's memory may be used directly. */
static int shares_memory(ad_comm *comm, void *context) {
  sides s = open_sides(comm, context);
  ad_array from, to;
  CHECK(ad_bridge_is_local(s.bridge, 7) && ad_bridge_is_local(s.bridge, 0));
  CHECK_OK(ad_bridge_describe(s.bridge, AD_F64, &s.world->shape, AD_FORWARD, &from, &to));
  from = filled(&s, &from, 1);
  to.data = from.data;
  CHECK_OK(ad_bridge_forward(s.bridge, &from, &to));
  holds(&s, &to, 1);
  ad_array longer = to;
  longer.shape.dim[0] *= 2;
  longer.local.dim[0] *= 2;
  CHECK_STATUS(ad_bridge_forward(s.bridge, &from, &longer), AD_INVALID);
  CHECK_SAYS("f64", "[14", "2]", "[7");
  forget(&from);
  close_sides(&s);
  return 0;
}

static void on_the_same_ranks_memory_may_be_shared(void **state) {
  static world w = {"tp=3", "tp=R", 0, 0, 3, {2, {7, 2}}, 0};
  run_ranks(w.ranks, shares_memory, &w);
}

/* ---- the injection point of mutations of routes ---- */

static void see_route(void *context, void *passing) {
  const ad_route_passing *at = passing;
  int64_t *seen = context;
  CHECK(at->count == 1 && at->sends == (at->out == NULL));
  CHECK(at->routes->here == 0 && at->routes->count == at->array->local.dim[0]);
  CHECK(ad_group_index(&at->group, at->routes->peer) >= 0);
  CHECK(!ad_bridge_known_bugs_show(at));
  seen[at->from->mesh != at->bridge->from.mesh] = at->routes->peer;
}

static int passes_the_injection_point(ad_comm *comm, void *context) {
  sides s = open_sides(comm, context);
  int64_t seen[] = {-1, -1}, rank = ad_comm_rank(comm), peer = (rank + 3) % 6;
  ad_injection_set(AD_INJECT_ROUTES, (ad_injection){see_route, seen});
  go_forward(&s, 1);
  go_back(&s, 2);
  ad_injections_clear();
  CHECK(seen[0] == peer && seen[1] == peer);
  close_sides(&s);
  return 0;
}

/* The known bugs with slices of a batch do not apply to this kind of bridge. */
static int knows_no_bug(ad_comm *comm, void *context) {
  sides s = open_sides(comm, context);
  size_t count;
  const ad_known_bug *bugs = ad_bridge_known_bugs(&count);
  for (size_t i = 0; i < count; i++) {
    ad_known_bug_scene scene = {.rank = ad_comm_rank(comm)};
    ad_known_bug_inject(&bugs[i], &scene);
    go_forward(&s, 1);
    go_back(&s, 2);
    ad_injections_clear();
    CHECK(!scene.fired);
  }
  close_sides(&s);
  return 0;
}

/* A mutation: rows from 1 on are sent as if they were rows from 0 on. */
static void shift(void *context, void *passing) {
  ad_route_passing *at = passing;
  at->routes->here = (int64_t)at->sends;
  at->routes->count--;
}

static int arrives_shifted(ad_comm *comm, void *context) {
  sides s = open_sides(comm, context);
  ad_array from, to;
  CHECK_OK(ad_bridge_describe(s.bridge, AD_F64, &s.world->shape, AD_FORWARD, &from, &to));
  ad_array source = filled(&s, &from, 1), destination = made(&to);
  ad_injection_set(AD_INJECT_ROUTES, (ad_injection){shift, NULL});
  CHECK_OK(ad_bridge_forward(s.bridge, &source, &destination));
  ad_injections_clear();
  CHECK(!destination.data || differs(&s, &destination, 1));
  forget(&source);
  forget(&destination);
  go_forward(&s, 1);
  close_sides(&s);
  return 0;
}

static void a_route_is_the_whole_part(void **state) {
  static world w = {"cp=3 tp=1", "cp=S0z tp=I", 0, 3, 6, {2, {13, 2}}, 0};
  run_ranks(w.ranks, passes_the_injection_point, &w);
  run_ranks(w.ranks, knows_no_bug, &w);
  run_ranks(w.ranks, arrives_shifted, &w);
}

/* ---- what is refused ---- */

typedef struct refusal {
  const char *source, *from, *destination, *to;
  int64_t first; /* first rank of the destination */
  ad_bridge_options options;
  ad_status status;
  const char *facts[6];
} refusal;

static void is_refused(ad_comm *comm, const refusal *r) {
  ad_mesh *a, *b;
  ad_layout from, to;
  ad_bridge *bridge = NULL;
  must(ad_mesh_create(r->source, &a));
  must(ad_mesh_create_pool(r->destination, r->first, &b));
  must(ad_layout_parse(a, r->from, &from));
  must(ad_layout_parse(b, r->to, &to));
  assert_int_equal(ad_bridge_create(comm, &from, &to, &r->options, &bridge), r->status);
  assert_says_all(r->facts);
  assert_int_equal(ad_bridge_check(&from, &to, &r->options), r->status);
  assert_null(bridge);
  ad_mesh_destroy(a);
  ad_mesh_destroy(b);
}

#define OPTIONS(...) \
  { .size = sizeof(ad_bridge_options), .identical = 1, __VA_ARGS__ }

static void what_is_not_identical_is_refused_with_both_sides(void **state) {
  static const refusal list[] = {
      {"dp=2 tp=2", "dp=S0 tp=I", "dp=4", "dp=S0", 4, OPTIONS(.tag = 0), AD_INVALID, {"dp_shard=2 tp=2", "dp_shard=4"}},
      {"dp=2 tp=2",
       "dp=S0 tp=I",
       "tp=2 dp=2",
       "dp=S0 tp=I",
       4,
       OPTIONS(.tag = 0),
       AD_INVALID,
       {"dp_shard=2 tp=2", "tp=2 dp_shard=2"}},
      {"dp=2", "dp=S0", "dp=3", "dp=S0", 2, OPTIONS(.tag = 0), AD_INVALID, {"dp_shard=2", "dp_shard=3"}},
      {"dp=4", "dp=S0", "dp=4", "dp=S0", 2, OPTIONS(.tag = 0), AD_INVALID, {"dp_shard=4", "0", "3", "2", "5"}},
      {"dp=2 cp=3", "dp=S0 cp=S1z", "dp=2 cp=3", "dp=S0 cp=S1", 6, OPTIONS(.tag = 0), AD_TYPE, {"cp", "S(1z)", "S(1)"}},
      {"dp=3", "dp=R", "dp=3", "dp=I", 3, OPTIONS(.tag = 0), AD_TYPE, {"dp_shard", "R", "I"}},
      {"dp=3 tp=1", "dp=R tp=R", "dp=3 tp=1", "dp=R tp=I", 0, OPTIONS(.tag = 0), AD_TYPE, {"tp", "R", "is I"}},
      {"dp=2 tp=2", "dp=S0 tp=S0", "dp=2 tp=2", "tp=S0 dp=S0", 4, OPTIONS(.tag = 0), AD_TYPE, {"dp_shard", "S(0)"}},
      {"dp=2 tp=2",
       "dp=S0 tp=P",
       "dp=2 tp=2",
       "dp=S0 tp=P",
       4,
       OPTIONS(.tag = 0),
       AD_TYPE,
       {"tp", "P", "P->I", "P->R"}},
      {"dp=2", "dp=S0", "dp=2", "dp=S0", 2, OPTIONS(.ragged = 1), AD_INVALID, {"identical", "ragged"}},
      {"dp=2", "dp=S0", "dp=2", "dp=S0", 2, OPTIONS(.tag = -1), AD_INVALID, {"-1", "0", "4611686018427387903"}},
      {"dp=2",
       "dp=S0",
       "dp=2",
       "dp=S0",
       2,
       OPTIONS(.tag = INT64_MAX / 2 + 1),
       AD_INVALID,
       {"4611686018427387904", "0"}},
  };
  ad_comm *comm;
  must(ad_comm_open_dry(0, 16, &comm));
  for (size_t i = 0; i < COUNT(list); i++) is_refused(comm, &list[i]);
  ad_comm_close(comm);
}

static void an_array_that_lies_otherwise_is_refused(void **state) {
  static const world w = {"dp=3 tp=1", "dp=R tp=S0", 0, 3, 6, {1, {7}}, 0};
  ad_comm *comm;
  ad_array source, destination;
  must(ad_comm_open_dry(1, 6, &comm));
  sides s = open_sides(comm, &w);
  must(ad_bridge_describe(s.bridge, AD_F64, &w.shape, AD_BACKWARD, &source, &destination));
  assert_int_equal(ad_bridge_forward_at(s.bridge, &source, NULL, "here"), AD_TYPE);
  assert_says("dp_shard=P", "tp=S0");
  assert_int_equal(ad_bridge_forward_at(s.bridge, NULL, NULL, "here"), AD_INVALID);
  assert_listed();
  close_sides(&s);
  ad_comm_close(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_part_goes_to_its_position_and_comes_back),
      cmocka_unit_test(an_empty_part_takes_its_turn),
      cmocka_unit_test(values_and_gradients_of_two_bridges_are_posted_in_any_order),
      cmocka_unit_test(sides_may_begin_at_opposite_ends),
      cmocka_unit_test(a_bridge_there_and_one_back_may_have_any_tags),
      cmocka_unit_test(a_part_and_none_do_not_match),
      cmocka_unit_test(nothing_is_summed_and_any_batch_divides),
      cmocka_unit_test(a_gradient_is_of_the_dual_types),
      cmocka_unit_test(on_backend_dry_nothing_moves),
      cmocka_unit_test(on_the_same_ranks_memory_may_be_shared),
      cmocka_unit_test(a_route_is_the_whole_part),
      cmocka_unit_test(what_is_not_identical_is_refused_with_both_sides),
      cmocka_unit_test(an_array_that_lies_otherwise_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
