/* Tests a reducer's dump: each addend as submitted, however it was written; the sums; and what is refused before
 * anything is written. That sums match their addends is tested on whole runs by train/tests/cli/dump.sh. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>
#include "allocations.h"
#include "addend/safetensors.h"
#include "base/memory.h"
#include "gradients.h"
#include "files/file.h"
#include "says.h"

static char folder[64];

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-dump-XXXXXX");
  return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void **state) { return ad_folder_remove(folder) != AD_OK; }

static ad_safetensors *open_file(int64_t rank, const char *kind) {
  char path[128];
  ad_safetensors *file;
  snprintf(path, sizeof path, "%s/rank%05d.%s.safetensors", folder, (int)rank, kind);
  CHECK_OK(ad_safetensors_open(path, &file));
  return file;
}

static ad_safetensors *open_addends(int64_t rank, int microbatch) {
  char kind[32];
  snprintf(kind, sizeof kind, "addend.m%d", microbatch);
  return open_file(rank, kind);
}

static void check_text(const ad_safetensors *file, const char *key, const char *expected) {
  const char *text = ad_safetensors_metadata(file, key);
  CHECK(text && !strcmp(text, expected));
}

static void check_addend(const model *m, const ad_safetensors *file, int param, int microbatch) {
  const ad_safetensor *tensor = ad_safetensors_find(file, param_names[param]);
  CHECK(tensor && tensor->dtype == m->dtype);
  for (size_t i = 0; i < (size_t)ad_shape_numel(&tensor->shape); i++)
    CHECK(number_at(tensor->data, m->dtype, i) == addend_of(m, param, ad_comm_rank(m->comm), microbatch, i));
}

static int is_same(const ad_array *sum, const ad_safetensor *kept) {
  return kept && kept->bytes == ad_array_bytes(sum) && (!kept->bytes || !memcmp(kept->data, sum->data, kept->bytes));
}

/* Dumps whole and sharded storage, gradients written in place and copied in, microbatches that accumulate and others
 * that are reduced. */
static int keeps(ad_comm *comm, const char *mesh, int shards) {
  model m;
  open_model(&m, comm, mesh, AD_F32);
  if (shards) shard_storage(&m);
  create_reducer(&m, 0);
  int64_t rank = ad_comm_rank(comm);
  schedule s = full_schedule(4);
  s.present[1] &= ~1u;  // parameter 0, `embedding`, has no addend in microbatch 1
  CHECK_OK(ad_reducer_dump(m.reducer, folder, 1, 7));
  for (int step = 0; step < 3; step++) run_step(&m, &s);
  for (int k = 0; k < s.microbatches; k++) {
    ad_safetensors *file = open_addends(rank, k);
    check_text(file, "addend.step", "7");
    for (int p = 0; p < PARAMS; p++) {
      if (s.present[k] >> p & 1)
        check_addend(&m, file, p, k);
      else
        CHECK(!ad_safetensors_find(file, param_names[p]));
    }
    ad_safetensors_close(file);
  }
  ad_safetensors *file = open_file(rank, "sum");
  for (size_t p = 0; p < PARAMS; p++)
    CHECK(is_same(ad_reducer_gradient(m.reducer, p), ad_safetensors_find(file, param_names[p])));
  ad_safetensors_close(file);
  close_model(&m);
  return 0;
}

static int keeps_full(ad_comm *comm, void *context) { return keeps(comm, "dp_replicate=2 dp_shard=2", 0); }
static int keeps_shards(ad_comm *comm, void *context) { return keeps(comm, "dp_shard=3 tp=2", 1); }
static void addends_are_those_that_were_submitted(void **state) { run_ranks(4, keeps_full, NULL); }
static void of_shards_too(void **state) { run_ranks(6, keeps_shards, NULL); }

static void check_norm(ad_comm *comm, const char *expected) {
  ad_safetensors *file = open_file(ad_comm_rank(comm), "sum");
  const char *norm = ad_safetensors_metadata(file, "addend.norm");
  CHECK(expected ? norm && !strcmp(norm, expected) : !norm);
  ad_safetensors_close(file);
}

static int reports(ad_comm *comm, void *context) {
  model m;
  open_model(&m, comm, "dp_shard=2", AD_F32);
  create_reducer(&m, 0);
  schedule s = full_schedule(1);
  CHECK_OK(ad_reducer_dump(m.reducer, folder, 0, 0));
  CHECK_OK(ad_reducer_reported(m.reducer, 1));  // the dump has no sums yet
  CHECK_OK(run_step(&m, &s));
  check_norm(comm, NULL);
  CHECK_OK(ad_reducer_reported(m.reducer, INFINITY));
  check_norm(comm, NULL);
  CHECK_OK(ad_reducer_reported(m.reducer, 3.25));
  check_norm(comm, "3.25");
  CHECK_OK(ad_reducer_begin_microbatch(m.reducer, AD_SYNC_ALL));
  CHECK_STATUS(ad_reducer_reported(m.reducer, 7), AD_INVALID);
  CHECK_OK(ad_reducer_end_microbatch(m.reducer));
  CHECK_OK(ad_reducer_finish(m.reducer));
  CHECK_OK(ad_reducer_reported(m.reducer, 7));
  check_norm(comm, "3.25");
  close_model(&m);
  return 0;
}

static void the_norm_of_the_dumped_step_is_reported_and_no_other(void **state) { run_ranks(2, reports, NULL); }

static void check_divisor(ad_safetensors *file, const char *expected) {
  const char *divisor = ad_safetensors_metadata(file, "addend.divisor");
  CHECK(expected ? divisor && !strcmp(divisor, expected) : !divisor);
  ad_safetensors_close(file);
}

/* The caller gives no divisor for the second microbatch. */
static int divides(ad_comm *comm, void *context) {
  static const double divisors[] = {6, 0, 0.1};
  model m;
  open_model(&m, comm, "dp_shard=2", AD_F32);
  create_reducer(&m, 0);
  int64_t rank = ad_comm_rank(comm);
  CHECK_OK(ad_reducer_dump(m.reducer, folder, 0, 0));
  for (int k = 0; k < 3; k++) {
    CHECK_OK(ad_reducer_begin_microbatch(m.reducer, k < 2 ? AD_SYNC_NONE : AD_SYNC_ALL));
    assert_int_equal(ad_reducer_divided_by(m.reducer, NAN), AD_INVALID);
    if (divisors[k]) assert_int_equal(ad_reducer_divided_by(m.reducer, divisors[k]), AD_OK);
    CHECK_OK(ad_reducer_end_microbatch(m.reducer));
  }
  CHECK_OK(ad_reducer_finish(m.reducer));
  check_divisor(open_addends(rank, 0), "6");
  check_divisor(open_addends(rank, 1), NULL);
  check_divisor(open_addends(rank, 2), "0.10000000000000001");
  check_divisor(open_file(rank, "sum"), NULL);
  close_model(&m);
  return 0;
}

static void the_divisor_of_each_microbatch_is_reported_and_no_other(void **state) { run_ranks(2, divides, NULL); }

/* The dtypes that a dump names for rounding after the producer: a gradient that is not raw is rounded to the gradient
 * dtype, then to the reduce dtype and to the accumulate dtype. */
static int rounds(ad_comm *comm, void *context) {
  static const ad_precision_policy policies[] = {
      {.param = AD_F32},
      {.param = AD_F32, .grad = AD_BF16, .reduce = AD_F32},
      {.param = AD_F32, .grad = AD_BF16, .raw = 1, .reduce = AD_F32},
      {.param = AD_F32, .grad = AD_F32, .reduce = AD_BF16},
      {.param = AD_F32, .grad = AD_F16, .reduce = AD_BF16},
      {.param = AD_F32, .grad = AD_BF16, .reduce = AD_F16},
      {.param = AD_F64, .grad = AD_F64, .reduce = AD_F64, .accumulate = AD_F64},
  };
  static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g"};
  enum { COUNT = sizeof policies / sizeof *policies };
  ad_mesh *mesh;
  ad_param_spec params[COUNT];
  const ad_array *absent[COUNT] = {0};
  ad_reducer *reducer;
  CHECK_OK(ad_mesh_create("dp_shard=2", &mesh));
  for (int i = 0; i < COUNT; i++)
    params[i] = (ad_param_spec){.size = sizeof(ad_param_spec),
                                .name = names[i],
                                .shape = {1, {3}},
                                .layout = ad_layout_all(mesh, AD_R),
                                .storage = ad_layout_all(mesh, AD_R),
                                .policy = policies[i]};
  CHECK_OK(ad_reducer_create(comm, params, COUNT, NULL, &reducer));
  CHECK_OK(ad_reducer_dump(reducer, folder, 0, 0));
  CHECK_OK(ad_reducer_step(reducer, absent));
  ad_safetensors *file = open_file(ad_comm_rank(comm), "sum");
  check_text(file, "addend.reduce",
             "{\"a\":\"f32\",\"b\":\"bf16\",\"c\":\"f32\",\"d\":\"bf16\",\"e\":\"bf16\",\"f\":\"bf16\",\"g\":\"f64\"}");
  ad_safetensors_close(file);
  ad_reducer_destroy(reducer);
  ad_mesh_destroy(mesh);
  return 0;
}

static void the_coarsest_dtype_of_an_addends_way_is_reported(void **state) { run_ranks(2, rounds, NULL); }

/* Dumps a parameter on each of two views, and a parameter whose values are each rank's own. */
static int reports_views(ad_comm *comm, void *context) {
  ad_mesh *mesh, *view, *astray;
  CHECK_OK(ad_mesh_create("dp_shard=4 tp=2", &mesh));
  CHECK_OK(ad_mesh_create_view(mesh, "efsdp=2 ep=2 etp=2", &view));
  CHECK_OK(ad_mesh_create_view(mesh, "ep=8", &astray));
  ad_param_spec params[] = {{.size = sizeof(ad_param_spec), .name = "dense", .shape = {1, {3}}},
                            {.size = sizeof(ad_param_spec), .name = "experts", .shape = {2, {5, 2}}},
                            {.size = sizeof(ad_param_spec), .name = "own", .shape = {1, {2}}}};
  CHECK_OK(ad_layout_parse(mesh, "dp_shard=R tp=I", &params[0].layout));
  CHECK_OK(ad_layout_parse(view, "efsdp=R ep=S0 etp=R", &params[1].layout));
  CHECK_OK(ad_layout_parse(mesh, "dp_shard=R tp=V", &params[2].layout));
  for (int i = 0; i < 3; i++) params[i].storage = params[i].layout;
  ad_reducer *reducer;
  CHECK_OK(ad_reducer_create(comm, params, 3, NULL, &reducer));
  CHECK_OK(ad_reducer_dump(reducer, folder, 0, 0));
  const ad_array *absent[3] = {0};
  CHECK_OK(ad_reducer_step(reducer, absent));
  ad_safetensors *file = open_file(ad_comm_rank(comm), "sum");
  check_text(file, "addend.mesh", "efsdp=2 ep=2 tp=2");
  check_text(file, "addend.types",
             "{\"dense\":\"efsdp=R ep=R tp=I\",\"experts\":\"efsdp=R ep=S0 tp=R\",\"own\":\"efsdp=R ep=R tp=S0\"}");
  check_text(file, "addend.shapes", "{\"dense\":[3],\"experts\":[5,2],\"own\":[2,2]}");
  if (ad_comm_rank(comm) == 3) check_text(file, "addend.held", "{\"experts\":[[2,0],[3,2]],\"own\":[[1,0],[1,2]]}");
  ad_safetensors_close(file);
  ad_reducer_destroy(reducer);
  ad_mesh_destroy(astray);
  ad_mesh_destroy(view);
  ad_mesh_destroy(mesh);
  return 0;
}

static void views_are_reported_on_one_mesh(void **state) { run_ranks(8, reports_views, NULL); }

static int refuses(ad_comm *comm, void *context) {
  ad_mesh *mesh, *view;
  CHECK_OK(ad_mesh_create("dp_shard=3 tp=2", &mesh));
  CHECK_OK(ad_mesh_create_view(mesh, "efsdp=2 ep=3", &view));
  ad_param_spec params[] = {{.size = sizeof(ad_param_spec), .name = "dense", .shape = {1, {12}}},
                            {.size = sizeof(ad_param_spec), .name = "experts", .shape = {1, {12}}}};
  params[0].layout = params[0].storage = ad_layout_all(mesh, AD_R);
  params[1].layout = params[1].storage = ad_layout_all(view, AD_R);
  ad_reducer *reducer;
  CHECK_OK(ad_reducer_create(comm, params, 2, NULL, &reducer));
  CHECK_STATUS(ad_reducer_dump(reducer, folder, 0, 0), AD_INVALID);
  CHECK_SAYS("dense", "experts", "dp_shard=3 tp=2", "efsdp=2 ep=3");
  const ad_array *absent[2] = {0};
  CHECK_OK(ad_reducer_step(reducer, absent));
  ad_reducer_destroy(reducer);

  CHECK_OK(ad_layout_parse(mesh, "dp_shard=R tp=S0z", &params[0].layout));
  params[0].storage = params[0].layout;
  CHECK_OK(ad_reducer_create(comm, params, 1, NULL, &reducer));
  CHECK_STATUS(ad_reducer_dump(reducer, folder, 0, 0), AD_INVALID);
  CHECK_SAYS("dense");
  ad_reducer_destroy(reducer);

  params[0].layout = params[0].storage = ad_layout_all(mesh, AD_R);
  CHECK_OK(ad_reducer_create(comm, params, 1, NULL, &reducer));
  CHECK_OK(ad_reducer_dump(reducer, folder, 0, 0));
  CHECK_OK(ad_reducer_step(reducer, absent));
  CHECK_STATUS(ad_reducer_dump(reducer, folder, 0, 0), AD_INVALID);
  CHECK_SAYS("addend.m0.safetensors");
  ad_reducer_destroy(reducer);
  ad_mesh_destroy(view);
  ad_mesh_destroy(mesh);
  return 0;
}

static void what_no_file_can_say_is_refused(void **state) { run_ranks(6, refuses, NULL); }

/* Two reducers on one rank have parameters without a common prefix; their dump files get different names. */
static int names_files(ad_comm *comm, void *context) {
  static const char *const names[] = {"stage0.", "stage1."};
  ad_mesh *mesh;
  char path[512];
  const ad_array *absent[1] = {0};
  CHECK_OK(ad_mesh_create("dp_shard=2", &mesh));
  ad_param_spec w = {.size = sizeof w, .name = "w", .shape = {1, {12}}};
  w.layout = w.storage = ad_layout_all(mesh, AD_R);
  for (int i = 0; i < 2; i++) {
    ad_reducer *reducer;
    ad_reducer_options options = {.size = sizeof options, .files = names[i]};
    CHECK_OK(ad_reducer_create(comm, &w, 1, &options, &reducer));
    CHECK_OK(ad_reducer_dump(reducer, folder, 0, 0));
    CHECK_OK(ad_reducer_step(reducer, absent));
    ad_reducer_destroy(reducer);
    snprintf(path, sizeof path, "%s/%srank%05d.sum.safetensors", folder, names[i], (int)ad_comm_rank(comm));
    CHECK(!access(path, F_OK));
  }
  ad_mesh_destroy(mesh);
  return 0;
}

static void reducers_of_one_rank_may_name_their_files(void **state) { run_ranks(2, names_files, NULL); }

/* A reducer with a prefix names its parameters with it, and its files unless they have their own names. */
static int prefixes(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  const ad_array *absent[1] = {0};
  CHECK_OK(ad_mesh_create("dp_shard=2", &mesh));
  ad_param_spec w = {.size = sizeof w, .name = "w", .shape = {1, {12}}};
  w.layout = w.storage = ad_layout_all(mesh, AD_R);
  for (int own_files = 0; own_files < 2; own_files++) {
    ad_reducer *reducer;
    char path[128];
    ad_safetensors *file;
    ad_reducer_options options = {.size = sizeof options, .prefix = "encoder.", .files = own_files ? "e1." : NULL};
    CHECK_OK(ad_reducer_create(comm, &w, 1, &options, &reducer));
    CHECK_OK(ad_reducer_dump(reducer, folder, 0, 0));
    CHECK_OK(ad_reducer_step(reducer, absent));
    ad_reducer_destroy(reducer);
    snprintf(path, sizeof path, "%s/%srank%05d.sum.safetensors", folder, own_files ? "e1." : "encoder.",
             (int)ad_comm_rank(comm));
    CHECK_OK(ad_safetensors_open(path, &file));
    CHECK(ad_safetensors_count(file) == 1 && ad_safetensors_find(file, "encoder.w"));
    ad_safetensors_close(file);
  }
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_prefix_is_before_the_names_of_parameters_and_files(void **state) { run_ranks(2, prefixes, NULL); }

/* Whichever allocation fails, the call fails and leaves no half-written file. */
static int runs_short(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  double grad[3] = {1, 2, 3};
  CHECK_OK(ad_mesh_create("dp_shard=1", &mesh));
  ad_layout partial = ad_layout_all(mesh, AD_P);
  ad_param_spec w = {.size = sizeof w,
                     .name = "w",
                     .shape = {1, {3}},
                     .layout = ad_layout_all(mesh, AD_R),
                     .policy = {.param = AD_F64}};
  w.storage = w.layout;
  ad_array array = ad_array_describe(comm, AD_F64, &w.shape, &partial);
  array.data = grad;
  const ad_array *grads[] = {&array};
  ad_status status = AD_MEMORY;
  for (long n = 1; status; n++) {
    ad_reducer *reducer;
    int is_whole = 0;
    CHECK_OK(ad_reducer_create(comm, &w, 1, NULL, &reducer));
    ad_memory_fail_at(n);
    status = ad_reducer_dump(reducer, folder, 0, 0);
    if (!status) status = ad_reducer_step(reducer, grads);
    if (!status) is_whole = 1, status = ad_reducer_reported(reducer, 1);
    CHECK(reports_allocation(n, status));
    ad_reducer_destroy(reducer);
    ad_file_list list = {0};
    if (status && !ad_file_list_add(&list, folder)) {
      CHECK(list.count == 1u + is_whole && strstr(list.entries[0].path, "addend.m0.safetensors"));
      for (size_t i = 0; i < list.count; i++) CHECK(!unlink(list.entries[i].path));
    }
    ad_file_list_clear(&list);
  }
  ad_mesh_destroy(mesh);
  return 0;
}

static void nothing_half_written_stays(void **state) { run_ranks(1, runs_short, NULL); }

int main(void) {
#define in_a_folder(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
  const struct CMUnitTest tests[] = {
      in_a_folder(addends_are_those_that_were_submitted),
      in_a_folder(of_shards_too),
      in_a_folder(the_norm_of_the_dumped_step_is_reported_and_no_other),
      in_a_folder(the_divisor_of_each_microbatch_is_reported_and_no_other),
      in_a_folder(the_coarsest_dtype_of_an_addends_way_is_reported),
      in_a_folder(views_are_reported_on_one_mesh),
      in_a_folder(what_no_file_can_say_is_refused),
      in_a_folder(reducers_of_one_rank_may_name_their_files),
      in_a_folder(a_prefix_is_before_the_names_of_parameters_and_files),
      in_a_folder(nothing_half_written_stays),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
