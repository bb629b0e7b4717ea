/* Tests frozen parameters on real ranks: the reducer sums the others as if there were no frozen ones, and refuses
 * gradients of them; the store keeps no masters of them and gathers them once. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>
#include "addend/safetensors.h"
#include "addend/store.h"
#include "files/file.h"
#include "gradients.h"
#include "kernels/kernels.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "says.h"

enum { ALL = (1 << PARAMS) - 1 };

static void freeze(model *m, unsigned frozen) {
  for (int p = 0; p < PARAMS; p++) m->params[p].frozen = frozen >> p & 1;
}

/* ---- the reducer ---- */

/* Creates a reducer for the parameters that are not frozen alone. */
static ad_reducer *create_without(const model *m, size_t bucket_bytes) {
  ad_param_spec params[PARAMS];
  size_t count = 0;
  ad_reducer *reducer;
  ad_reducer_options options = {.size = sizeof options, .bucket_bytes = bucket_bytes};
  for (int p = 0; p < PARAMS; p++)
    if (!m->params[p].frozen) params[count++] = m->params[p];
  CHECK_OK(ad_reducer_create(m->comm, params, count, &options, &reducer));
  return reducer;
}

/* Checks that the reducer's buckets are those of the parameters that are not frozen. */
static void check_buckets(const model *m, size_t bucket_bytes) {
  ad_reducer *without = create_without(m, bucket_bytes);
  CHECK(ad_reducer_bucket_count(m->reducer) == ad_reducer_bucket_count(without));
  CHECK(ad_reducer_bytes(m->reducer) == ad_reducer_bytes(without));
  ad_reducer_destroy(without);
  for (size_t i = 0; i < ad_reducer_bucket_count(m->reducer); i++) {
    ad_bucket_plan bucket = ad_reducer_bucket(m->reducer, i);
    for (size_t k = 0; k < bucket.param_count; k++) CHECK(!m->params[bucket.params[k]].frozen);
  }
}

/* Checks the sums, and returns the sum of their squares over all elements of the full gradients. */
static double check_sums(const model *m, const schedule *s) {
  double squares = 0;
  for (int p = 0; p < PARAMS; p++) {
    const ad_array *grad = ad_reducer_gradient(m->reducer, (size_t)p);
    CHECK(m->params[p].frozen ? !grad && ad_reducer_is_absent(m->reducer, (size_t)p) : grad != NULL);
    for (size_t i = 0; grad && i < ad_array_numel(grad); i++)
      CHECK(number_at(grad->data, grad->dtype, i) == expected_sum(m, s, p, result_start(m, p) + i));
    for (size_t i = 0; grad && i < (size_t)ad_shape_numel(&grad->shape); i++)
      squares += expected_sum(m, s, p, i) * expected_sum(m, s, p, i);
  }
  return squares;
}

static int sum_the_others(ad_comm *comm, void *context) {
  static const size_t bucket_bytes[] = {1, 200, 0};
  for (unsigned frozen = 0; frozen <= ALL; frozen++) {
    model m;
    double norm;
    open_model(&m, comm, "dp_replicate=2 dp_shard=2", AD_F64);
    if (frozen % 2) shard_storage(&m);
    freeze(&m, frozen);
    create_reducer(&m, bucket_bytes[frozen % 3]);
    schedule s = full_schedule(3);
    for (int i = 0; i < s.microbatches; i++) s.present[i] &= ~frozen;
    for (int step = 0; step < 2; step++) CHECK_OK(run_step(&m, &s));
    check_buckets(&m, bucket_bytes[frozen % 3]);
    double squares = check_sums(&m, &s);
    ad_group all = ad_mesh_group(m.mesh, AD_AXES_ALL, ad_comm_rank(comm));
    CHECK_OK(ad_reducer_norm(m.reducer, &all, &norm));
    CHECK(fabs(norm - sqrt(squares)) <= 1e-12 * norm);
    close_model(&m);
  }
  return 0;
}

static void the_others_are_summed_as_if_no_parameter_were_frozen(void **state) { run_ranks(4, sum_the_others, NULL); }

/* After the first step, in which ranks compare their lists, the first rank takes more steps than the other. */
static int step_alone(ad_comm *comm, void *context) {
  model m;
  open_model(&m, comm, "dp_shard=2", AD_F32);
  shard_storage(&m);
  freeze(&m, ALL);
  create_reducer(&m, 0);
  schedule s = {.microbatches = 2, .sync = {AD_SYNC_SHARD, AD_SYNC_ALL}};
  int steps = ad_comm_rank(comm) ? 1 : 4;
  for (int step = 0; step < steps; step++) CHECK_OK(run_step(&m, &s));
  CHECK(!ad_reducer_bytes(m.reducer) && !ad_reducer_plan_count(m.reducer));
  close_model(&m);
  return 0;
}

static void nothing_is_communicated_if_all_are_frozen(void **state) { run_ranks(2, step_alone, NULL); }

static int give_frozen(ad_comm *comm, void *context) {
  model m;
  double memory[64] = {0};
  ad_array target, grad, *grads[PARAMS] = {0};
  int adds;
  open_model(&m, comm, "dp_shard=2", AD_F64);
  freeze(&m, 1u << 2);
  create_reducer(&m, 0);
  grad = describe_gradient(&m, 2);
  grad.data = memory;
  grads[2] = &grad;
  CHECK_STATUS(ad_reducer_step(m.reducer, (const ad_array *const *)grads), AD_INVALID);
  CHECK_SAYS("test_frozen.c", "ad_reducer_step", "query");
  CHECK_OK(ad_reducer_begin_microbatch(m.reducer, AD_SYNC_ALL));
  CHECK_STATUS(ad_reducer_add(m.reducer, 2, &grad), AD_INVALID);
  CHECK_SAYS("test_frozen.c", "ad_reducer_add", "query");
  CHECK_STATUS(ad_reducer_target(m.reducer, 2, &target, &adds), AD_INVALID);
  CHECK_SAYS("test_frozen.c", "ad_reducer_target", "query");
  CHECK_OK(ad_reducer_end_microbatch(m.reducer));
  CHECK_OK(ad_reducer_finish(m.reducer));
  close_model(&m);
  return 0;
}

static void a_gradient_of_a_frozen_parameter_is_refused_by_name(void **state) { run_ranks(2, give_frozen, NULL); }

/* A frozen parameter may have types and a policy that a reducer with leaves refuses of a trained one. */
static int sum_leaves(ad_comm *comm, void *context) {
  static const ad_sync sync[] = {AD_SYNC_ALL};
  ad_leaf_options leaves = {.leaves = 2, .rounds = 1, .sync = sync};
  ad_reducer_options options = {.size = sizeof options, .leaves = &leaves};
  model m;
  open_model(&m, comm, "dp_shard=2", AD_F32);
  freeze(&m, 1);
  m.params[0].layout = m.params[0].storage = ad_layout_all(m.mesh, AD_I);
  m.params[0].policy.reduce = AD_BF16;
  CHECK_OK(ad_reducer_create(comm, m.params, PARAMS, &options, &m.reducer));
  schedule s = full_schedule(1);
  CHECK_OK(ad_reducer_begin_leaf(m.reducer, AD_SYNC_ALL, ad_comm_rank(comm)));
  for (int p = 1; p < PARAMS; p++) add_gradient(&m, p, 0);
  CHECK_OK(ad_reducer_end_microbatch(m.reducer));
  CHECK_OK(ad_reducer_finish(m.reducer));
  check_sums(&m, &s);
  close_model(&m);
  return 0;
}

static void leaves_are_summed_beside_frozen_parameters(void **state) { run_ranks(2, sum_leaves, NULL); }

/* ---- a dump ---- */

static char folder[64];

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-frozen-XXXXXX");
  return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void **state) { return ad_folder_remove(folder) != AD_OK; }

static int dump(ad_comm *comm, void *context) {
  unsigned frozen = *(const unsigned *)context;
  model m;
  char path[128];
  open_model(&m, comm, "dp_shard=1", AD_F32);
  freeze(&m, frozen);
  create_reducer(&m, 0);
  schedule s = full_schedule(1);
  s.present[0] &= ~frozen;
  CHECK_OK(ad_reducer_dump(m.reducer, folder, 0, 0));
  CHECK_OK(run_step(&m, &s));
  for (int sums = 0; sums < 2; sums++) {
    ad_safetensors *file;
    snprintf(path, sizeof path, "%s/rank00000.%s.safetensors", folder, sums ? "sum" : "addend.m0");
    CHECK((access(path, F_OK) == 0) == (frozen != ALL));
    if (frozen == ALL) continue;
    CHECK_OK(ad_safetensors_open(path, &file));
    for (int p = 0; p < PARAMS; p++) CHECK((ad_safetensors_find(file, param_names[p]) == NULL) == (frozen >> p & 1));
    ad_safetensors_close(file);
  }
  close_model(&m);
  return 0;
}

static void a_dump_has_no_frozen_parameter(void **state) {
  unsigned frozen = 6;
  run_ranks(1, dump, &frozen);
}

static void without_a_gradient_there_is_no_dump(void **state) {
  unsigned frozen = ALL;
  run_ranks(1, dump, &frozen);
}

/* ---- the store ---- */

enum { TRAINED, FROZEN_BESIDE, FROZEN_ALONE, STORED };

typedef struct stored {
  ad_mesh *mesh;
  ad_store *store;
} stored;

/* Three parameters in two units: the second unit has a frozen parameter alone. */
static void open_store(stored *w, ad_comm *comm, int releases) {
  static const char *const names[STORED] = {"a", "b", "c"};
  static const int units[STORED] = {0, 0, 1};
  ad_param_spec specs[STORED];
  ad_store_options options = {.size = sizeof options, .releases = releases};
  CHECK_OK(ad_mesh_create("dp_shard=2", &w->mesh));
  for (int p = 0; p < STORED; p++) {
    specs[p] = (ad_param_spec){.size = sizeof specs[p],
                               .name = names[p],
                               .shape = {2, {4, 3}},
                               .layout = ad_layout_all(w->mesh, AD_R),
                               .storage = ad_layout_all(w->mesh, AD_R),
                               .policy = {.param = AD_BF16},
                               .unit = units[p],
                               .frozen = p != TRAINED};
    ad_layout_set(&specs[p].storage, AD_AXES(AD_DP_SHARD), AD_S(0));
  }
  CHECK_OK(ad_store_create(comm, specs, STORED, &options, &w->store));
}

static void close_store(stored *w) {
  ad_store_destroy(w->store);
  ad_mesh_destroy(w->mesh);
}

static void write_all(stored *w, double number) {
  for (int p = 0; p < STORED; p++) {
    ad_array *master = ad_store_master(w->store, (size_t)p);
    size_t size = ad_dtype_size(master->dtype);
    for (size_t i = 0; i < ad_array_numel(master); i++)
      ad_cast((char *)master->data + i * size, master->dtype, &number, AD_F64, 1);
  }
}

/* Checks that computation gets the number everywhere in the parameter. */
static void check_copy(stored *w, int p, double number) {
  CHECK_OK(ad_store_acquire(w->store, (size_t)p));
  const ad_array *copy = ad_store_compute(w->store, (size_t)p);
  for (size_t i = 0; i < ad_array_numel(copy); i++) CHECK(number_at(copy->data, copy->dtype, i) == number);
  ad_store_release(w->store, (size_t)p);
}

static void check_copies(stored *w, const double numbers[STORED]) {
  CHECK_OK(ad_store_begin_pass(w->store, AD_FORWARD));
  for (int p = 0; p < STORED; p++) check_copy(w, p, numbers[p]);
  CHECK_OK(ad_store_end_pass(w->store));
}

static int refresh(ad_comm *comm, void *context) {
  stored w;
  open_store(&w, comm, 0);
  write_all(&w, 1);
  CHECK_OK(ad_store_refresh(w.store, AD_MASTERS_WRITTEN));
  check_copies(&w, (const double[]){1, 1, 1});
  write_all(&w, 2);
  CHECK_OK(ad_store_refresh(w.store, AD_MASTERS_UPDATED));
  check_copies(&w, (const double[]){2, 2, 1});
  write_all(&w, 3);
  CHECK_OK(ad_store_refresh(w.store, AD_MASTERS_UPDATED));
  check_copies(&w, (const double[]){3, 3, 1});
  CHECK_OK(ad_store_refresh(w.store, AD_VALUES_WRITTEN));
  check_copies(&w, (const double[]){3, 3, 3});
  close_store(&w);
  return 0;
}

static void a_unit_of_frozen_parameters_alone_is_gathered_once(void **state) { run_ranks(2, refresh, NULL); }

static int refresh_released(ad_comm *comm, void *context) {
  stored w;
  open_store(&w, comm, 1);
  write_all(&w, 1);
  CHECK_OK(ad_store_refresh(w.store, AD_MASTERS_WRITTEN));
  check_copies(&w, (const double[]){1, 1, 1});
  write_all(&w, 2);
  CHECK_OK(ad_store_refresh(w.store, AD_MASTERS_UPDATED));
  check_copies(&w, (const double[]){2, 2, 2});
  close_store(&w);
  return 0;
}

static void copies_that_are_released_are_gathered_for_each_use(void **state) { run_ranks(2, refresh_released, NULL); }

static int count_masters(ad_comm *comm, void *context) {
  stored w;
  open_store(&w, comm, 0);
  size_t shard = 6;
  CHECK(ad_store_master(w.store, TRAINED)->dtype == AD_F32);
  for (size_t p = FROZEN_BESIDE; p < STORED; p++) CHECK(ad_store_master(w.store, p) == ad_store_value(w.store, p));
  CHECK(ad_store_bytes(w.store) == shard * (STORED * sizeof(uint16_t) + sizeof(float)));
  close_store(&w);
  return 0;
}

static void a_frozen_parameter_has_no_master(void **state) { run_ranks(2, count_masters, NULL); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_others_are_summed_as_if_no_parameter_were_frozen),
      cmocka_unit_test(nothing_is_communicated_if_all_are_frozen),
      cmocka_unit_test(a_gradient_of_a_frozen_parameter_is_refused_by_name),
      cmocka_unit_test(leaves_are_summed_beside_frozen_parameters),
      cmocka_unit_test_setup_teardown(a_dump_has_no_frozen_parameter, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(without_a_gradient_there_is_no_dump, make_folder, remove_folder),
      cmocka_unit_test(a_unit_of_frozen_parameters_alone_is_gathered_once),
      cmocka_unit_test(copies_that_are_released_are_gathered_for_each_use),
      cmocka_unit_test(a_frozen_parameter_has_no_master),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
