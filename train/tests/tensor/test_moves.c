/* Tests transitions on the tape, on real ranks: each is the adjoint of its backward, also where it adds to a gradient;
 * a transformer block with sharded parameters against finite differences; a failed rank reports to the others. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include "../../../core/tests/array/values.h"
#include "addend/tensor.h"
#include "ranks.h"
#include "says.h"
#include "layout/type.h"
#include "tensor/tape.h"

static ad_tape *open_tape(ad_comm *comm, const ad_mesh *mesh) {
  ad_tape *tape = NULL;
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  CHECK_OK(ad_tape_create(comm, mesh, &options, &tape));
  return tape;
}

static ad_array random_array(ad_comm *comm, const ad_shape *shape, const ad_layout *layout, uint64_t stream) {
  ad_array array = {0};
  CHECK_OK(ad_array_create(comm, AD_F64, shape, layout, &array));
  fill_value(comm, &array, stream);
  return array;
}

static ad_array random_dual(ad_comm *comm, const ad_array *of, uint64_t stream) {
  ad_layout dual = ad_layout_dual(&of->layout);
  return random_array(comm, &of->shape, &dual, stream);
}

/* The inner product of a value and a dual value as each rank's addend on tp, whatever their types. */
static ad_tensor *paired(ad_tape *tape, ad_tensor *value, const ad_array *dual) {
  ad_tensor *product = ad_sum(tape, ad_multiply(tape, value, ad_constant(tape, dual)));
  const ad_array *array = ad_tensor_array(product);
  ad_type type = array ? array->layout.type[AD_TP] : AD_P;
  if (type == AD_V) return ad_declare(tape, product, "tp", AD_P);
  if (type == AD_I) return ad_once(tape, ad_convert(tape, product, "tp", AD_R), "tp");
  return product;
}

/* ---- every transition is the adjoint of its backward ---- */

typedef struct trial {
  ad_comm *comm;
  const ad_mesh *mesh;
  const ad_transition *entry;
  ad_type from, to;
  int used_twice;
} trial;

static void run_trial(const trial *t, const ad_shape *shape) {
  ad_layout layout = ad_layout_all(t->mesh, AD_R);
  ad_layout_set(&layout, AD_AXES(AD_TP), t->from);
  ad_array x = random_array(t->comm, shape, &layout, 1), u = random_dual(t->comm, &x, 2);
  ad_tape *tape = open_tape(t->comm, t->mesh);
  ad_tensor *leaf = ad_input(tape, &x), *moved = ad_move_at(tape, leaf, t->entry->move, "tp", t->to, AD_HERE);
  CHECK_OK(ad_tape_status(tape));
  ad_array y = random_dual(t->comm, ad_tensor_array(moved), 3);
  ad_tensor *loss = paired(tape, moved, &y);
  if (t->used_twice) loss = ad_add(tape, loss, paired(tape, leaf, &u));
  CHECK_OK(ad_backward(tape, loss));
  double left = ad_tensor_scalar(loss), right = 0;
  CHECK_OK(sum_over_mesh(t->comm, t->mesh, &left));
  CHECK_OK(pair(t->comm, &x, ad_grad(leaf), &right));
  CHECK(fabs(left - right) <= 1e-12 * (1 + fabs(left)));
  ad_tape_destroy(tape);
  ad_array_destroy(t->comm, &x);
  ad_array_destroy(t->comm, &u);
  ad_array_destroy(t->comm, &y);
}

static const ad_type shardings[] = {AD_S(0), AD_S(1), AD_S(2), AD_S_ZIGZAG(0), AD_S_ZIGZAG(1)};
enum { SHARDINGS = sizeof shardings / sizeof *shardings };
static const ad_shape shapes[] = {{3, {5, 3, 2}}, {3, {1, 7, 4}}, {3, {6, 12, 6}}, {3, {0, 3, 5}}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int is_sharded_kind(ad_type kind) { return kind == AD_S(0); }

/* Declaring a cut needs equal parts. */
static int is_possible(const trial *t, const ad_shape *shape) {
  return t->entry->move != AD_MOVE_DECLARE || !(ad_type_is_sharded(t->from) || ad_type_is_sharded(t->to)) ||
         shape->dim[1] == 12;
}

static void run_types(trial *t) {
  for (int from = 0; from < (is_sharded_kind(t->entry->from) ? SHARDINGS : 1); from++)
    for (int to = 0; to < (is_sharded_kind(t->entry->to) ? SHARDINGS : 1); to++) {
      t->from = is_sharded_kind(t->entry->from) ? shardings[from] : t->entry->from;
      t->to = is_sharded_kind(t->entry->to) ? shardings[to] : t->entry->to;
      for (int i = 0; i < SHAPES && (t->from != t->to || !ad_type_is_sharded(t->from)); i++)
        for (t->used_twice = 0; t->used_twice < 2; t->used_twice++)
          if (is_possible(t, &shapes[i])) run_trial(t, &shapes[i]);
    }
}

/* all_to_all V to V takes counts, which a transition on the tape does not have (ad_array_exchange has them). */
static int is_on_the_tape(const ad_transition *entry) {
  return entry->move != AD_MOVE_ALL_TO_ALL || entry->from != AD_V;
}

static int run_table(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create(context, &mesh));
  size_t count;
  const ad_transition *table = ad_transition_table(&count);
  for (size_t i = 0; i < count; i++) {
    trial t = {.comm = comm, .mesh = mesh, .entry = &table[i]};
    if (is_on_the_tape(t.entry)) run_types(&t);
  }
  ad_mesh_destroy(mesh);
  return 0;
}

static void every_transition_is_the_adjoint_of_its_backward(void **state) {
  run_ranks(1, run_table, (char[]){"tp=1"});
  run_ranks(2, run_table, (char[]){"tp=2"});
  run_ranks(3, run_table, (char[]){"tp=3"});
}

/* ---- a transformer block with sharded parameters, against finite differences ---- */

enum { PARAMS = 4 };

typedef struct block {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_array param[PARAMS], step[PARAMS];
} block;

/* Rows are sharded over dp and hidden units over tp, unevenly. */
static const struct {
  const char *layout;
  ad_shape shape;
} described[PARAMS] = {{"dp_shard=S0 tp=I", {3, {3, 2, 4}}},
                       {"dp_shard=R tp=I", {1, {4}}},
                       {"dp_shard=R tp=S1", {2, {4, 7}}},
                       {"dp_shard=R tp=S0", {2, {7, 4}}}};

static void open_block(block *b, ad_comm *comm, const char *mesh) {
  b->comm = comm;
  CHECK_OK(ad_mesh_create(mesh, &b->mesh));
  for (int i = 0; i < PARAMS; i++) {
    ad_layout layout;
    CHECK_OK(ad_layout_parse(b->mesh, described[i].layout, &layout));
    b->param[i] = random_array(comm, &described[i].shape, &layout, 20 + (uint64_t)i);
    b->step[i] = random_array(comm, &described[i].shape, &layout, 30 + (uint64_t)i);
  }
}

static void close_block(block *b) {
  for (int i = 0; i < PARAMS; i++) {
    ad_array_destroy(b->comm, &b->param[i]);
    ad_array_destroy(b->comm, &b->step[i]);
  }
  ad_mesh_destroy(b->mesh);
}

static ad_tensor *run_block(ad_tape *t, ad_tensor *const *p) {
  ad_tensor *h = ad_convert(t, ad_rms_norm(t, p[0], p[1], 1e-5), "tp", AD_R);
  h = ad_linear(t, ad_gelu(t, ad_linear(t, h, p[2])), p[3]);
  h = ad_add(t, p[0], ad_all_reduce(t, h, "tp", AD_I));
  return ad_sum(t, ad_multiply(t, h, h));
}

/* The loss, summed over the ranks; *slope, if not NULL, gets <gradient, step>. */
static double evaluate(block *b, double *slope) {
  ad_tape *tape = open_tape(b->comm, b->mesh);
  ad_tensor *p[PARAMS];
  for (int i = 0; i < PARAMS; i++) p[i] = ad_input(tape, &b->param[i]);
  ad_tensor *loss = run_block(tape, p);
  CHECK_OK(ad_tape_status(tape));
  ad_layout dual = ad_layout_dual(&ad_tensor_array(loss)->layout);
  double one = 1, total = 0, part;
  ad_array ones = ad_array_describe(b->comm, AD_F64, &(ad_shape){0, {0}}, &dual);
  ones.data = &one;
  CHECK_OK(pair(b->comm, ad_tensor_array(loss), &ones, &total));
  if (slope) {
    CHECK_OK(ad_backward(tape, loss));
    *slope = 0;
    for (int i = 0; i < PARAMS; i++) {
      CHECK_OK(pair(b->comm, &b->step[i], ad_grad(p[i]), &part));
      *slope += part;
    }
  }
  ad_tape_destroy(tape);
  return total;
}

static void go(block *b, double by) {
  for (int i = 0; i < PARAMS; i++)
    for (size_t k = 0; k < ad_array_numel(&b->param[i]); k++)
      ((double *)b->param[i].data)[k] += by * ((double *)b->step[i].data)[k];
}

/* The bound 1e-7: a central difference with step 1e-5 errs by about 1e-10 (its square) and 1e-11
 * (rounding over step). */
static int differentiate(ad_comm *comm, void *context) {
  block b;
  double slope;
  open_block(&b, comm, context);
  evaluate(&b, &slope);
  go(&b, 1e-5);
  double above = evaluate(&b, NULL);
  go(&b, -2e-5);
  double below = evaluate(&b, NULL);
  CHECK(fabs((above - below) / 2e-5 - slope) <= 1e-7 * (1 + fabs(slope)));
  close_block(&b);
  return 0;
}

static void a_block_sharded_over_ranks_has_its_gradients(void **state) {
  run_ranks(1, differentiate, (char[]){"dp_shard=1 tp=1"});
  run_ranks(2, differentiate, (char[]){"dp_shard=1 tp=2"});
  run_ranks(3, differentiate, (char[]){"dp_shard=1 tp=3"});
  run_ranks(4, differentiate, (char[]){"dp_shard=2 tp=2"});
}

/* ---- values seen on another view of the same ranks ---- */

/* sum(gelu(x) * c) over rows that are sharded over both axes, computed on the mesh (view NULL) or on `view` of the same
 * ranks. */
static ad_tensor *route(ad_tape *t, ad_tensor *x, const ad_array *c, const ad_mesh *view) {
  x = ad_declare(t, ad_declare(t, x, "tp", AD_V), "dp_shard", AD_V);
  if (view) x = ad_view(t, x, view);
  x = ad_sum(t, ad_multiply(t, ad_gelu(t, x), ad_constant(t, c)));
  return ad_declare(t, x, view ? "efsdp,ep" : "dp_shard,tp", AD_P);
}

static ad_status give(void *context, size_t param) { return AD_OK; }

/* x is an input used once, an input used twice, or a parameter that is lent for each use, so that its
 * copy is viewed. */
static int run_view(ad_comm *comm, void *context) {
  ad_mesh *mesh, *view;
  ad_layout sharded;
  CHECK_OK(ad_mesh_create("dp_shard=2 tp=2", &mesh));
  CHECK_OK(ad_mesh_create_view(mesh, "efsdp=1 ep=4", &view));
  CHECK_OK(ad_layout_parse(mesh, "dp_shard=S0 tp=S0", &sharded));
  ad_array x = random_array(comm, &(ad_shape){2, {8, 3}}, &sharded, 1), c[2];
  const ad_array *list[] = {&x};
  ad_parameters from = {.size = sizeof from, .values = list, .count = 1, .acquire = give};
  ad_shape rows = {2, {2, 3}};
  for (int i = 0; i < 2; i++) {
    ad_layout varying;
    CHECK_OK(ad_layout_parse(i ? view : mesh, i ? "efsdp=V ep=V" : "dp_shard=V tp=V", &varying));
    c[i] = random_array(comm, &rows, &varying, 2);
  }
  for (int kind = 0; kind < 3; kind++) {
    ad_tape *plain = open_tape(comm, mesh), *seen = open_tape(comm, mesh);
    ad_tensor *a = ad_input(plain, &x), *b = kind == 2 ? ad_parameter(seen, &from, 0) : ad_input(seen, &x);
    ad_tensor *loss = route(plain, a, &c[0], NULL), *loss_seen = route(seen, b, &c[1], view);
    if (kind == 1) loss = ad_add(plain, loss, route(plain, a, &c[0], NULL));
    if (kind == 1) loss_seen = ad_add(seen, loss_seen, route(seen, b, &c[1], view));
    CHECK_OK(ad_backward(plain, loss));
    CHECK_OK(ad_backward(seen, loss_seen));
    CHECK(ad_tensor_scalar(loss) == ad_tensor_scalar(loss_seen));
    CHECK(ad_layout_equal(&ad_grad(a)->layout, &ad_grad(b)->layout));
    CHECK(!memcmp(ad_grad(a)->data, ad_grad(b)->data, ad_array_bytes(&x)));
    ad_tape_destroy(plain);
    ad_tape_destroy(seen);
  }
  ad_array_destroy(comm, &x);
  for (int i = 0; i < 2; i++) ad_array_destroy(comm, &c[i]);
  ad_mesh_destroy(view);
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_view_changes_no_value_and_no_gradient(void **state) { run_ranks(4, run_view, NULL); }

/* ---- counts that divide a loss ---- */

/* Rank r counts 10 r tokens in one microbatch and r in the next; a rank waits for the sum only when it divides the
 * loss. */
static int divide_by_count(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_count *count;
  CHECK_OK(ad_mesh_create("dp_shard=3", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_P);
  int64_t rank = ad_comm_rank(comm);
  double numerator = 66;
  ad_array x = ad_array_describe(comm, AD_F64, &(ad_shape){0, {0}}, &layout);
  x.data = &numerator;
  CHECK_OK(ad_count_create(comm, &layout, 2, &count));
  CHECK_OK(ad_count_post(count, (int64_t[]){10 * rank, rank}));
  ad_tape *tape = open_tape(comm, mesh);
  ad_tensor *leaf = ad_input(tape, &x), *mean = ad_divide(tape, leaf, count), *part = ad_share(tape, leaf, count, 1);
  CHECK_OK(ad_tape_status(tape));
  CHECK(ad_tensor_scalar(mean) == 2);
  CHECK(ad_tensor_scalar(part) == 3.0 / 33 * 66);
  CHECK_OK(ad_backward(tape, mean));
  CHECK(*(double *)ad_grad(leaf)->data == 1.0 / 33);
  ad_tape_destroy(tape);
  ad_count_destroy(count);
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_loss_is_divided_by_the_count_of_all_ranks(void **state) { run_ranks(3, divide_by_count, NULL); }

/* ---- rotary positions of a sharded sequence ---- */

static const ad_rotary_scaling slower = {.factor = 8, .low_turns = 0.5, .high_turns = 2, .original_positions = 16};

/* Rotary embedding of a sharded sequence, however it is sharded, uses the positions in the whole sequence. */
static int rotate_parts(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create("tp=3", &mesh));
  ad_layout full = ad_layout_all(mesh, AD_I), layout;
  CHECK_OK(ad_layout_parse(mesh, context, &layout));
  ad_shape shape = {3, {2, 13, 8}};
  ad_array x = random_array(comm, &shape, &full, 1), back = ad_array_describe(comm, AD_F64, &shape, &full);
  ad_tape *tape = open_tape(comm, mesh);
  ad_tensor *leaf = ad_constant(tape, &x), *right = ad_rotary_scaled(tape, leaf, 4, 10000, &slower);
  ad_tensor *part = ad_convert(tape, leaf, "tp", layout.type[AD_TP]);
  part = ad_rotary_scaled(tape, part, 4, 10000, &slower);
  part = ad_all_gather(tape, part, "tp", AD_I);
  CHECK_OK(ad_tape_status(tape));
  CHECK(!memcmp(ad_tensor_array(part)->data, ad_tensor_array(right)->data, ad_array_bytes(&back)));
  ad_tape_destroy(tape);
  ad_array_destroy(comm, &x);
  ad_mesh_destroy(mesh);
  return 0;
}

static void rotary_knows_the_positions_of_a_part(void **state) {
  run_ranks(3, rotate_parts, (char[]){"tp=S1"});
  run_ranks(3, rotate_parts, (char[]){"tp=S1z"});
  run_ranks(3, rotate_parts, (char[]){"tp=S0"});
}

/* ---- a rank that fails on the tape ---- */

/* Rank 1 has an index outside the table and never reaches the all-reduce in which the other ranks wait. */
static int fail_on_rank_1(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create("tp=3", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_P), same = ad_layout_all(mesh, AD_R);
  ad_array table = random_array(comm, &(ad_shape){2, {4, 2}}, &layout, 1);
  ad_array indices = ad_array_describe(comm, AD_I32, &(ad_shape){1, {1}}, &same);
  int32_t index = ad_comm_rank(comm) == 1 ? 9 : 0;
  indices.data = &index;
  ad_tape *tape = open_tape(comm, mesh);
  ad_tensor *row = ad_embedding(tape, ad_input(tape, &table), ad_constant(tape, &indices));
  ad_all_reduce(tape, row, "tp", AD_I);
  CHECK(ad_tape_status(tape) == (ad_comm_rank(comm) == 1 ? AD_INVALID : AD_PEER_FAILED));
  CHECK_FACTS("index 9");
  ad_tape_destroy(tape);
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_failed_tape_reports_to_the_ranks_that_wait_for_it(void **state) {
  ad_launch_options options = {.size = sizeof options, .ranks = 3, .function = fail_on_rank_1};
  ad_launch_result result = {.size = sizeof result};
  assert_int_equal(ad_launch(&options, &result), AD_OK);  // every rank passed its own checks
  assert_int_equal(result.status, AD_INVALID);
  assert_text_says(result.message, "9");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_transition_is_the_adjoint_of_its_backward),
      cmocka_unit_test(a_block_sharded_over_ranks_has_its_gradients),
      cmocka_unit_test(a_view_changes_no_value_and_no_gradient),
      cmocka_unit_test(a_loss_is_divided_by_the_count_of_all_ranks),
      cmocka_unit_test(rotary_knows_the_positions_of_a_part),
      cmocka_unit_test(a_failed_tape_reports_to_the_ranks_that_wait_for_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
