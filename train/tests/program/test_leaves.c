/* Tests programs with leaves, without running them: what `create` sees is one data-parallel position, what it added is
 * on all ranks, a rank has data of its own leaves only, and what cannot be summed by leaves is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "addend/helpers.h"
#include "base/memory.h"
#include "program/program.h"
#include "says.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

enum { BATCH = 7, LEAVES = 4 };

/* What `create` adds besides the usual. */
typedef enum oddity { USUAL, PARAM_IS_I, PARAM_ON_VIEW, VIEW_IS_I, HAS_STATE, SHARDED_STATE, COUNT_ON_VIEW } oddity;

typedef struct model {
  ad_batch *batch;
  ad_mesh *view;
  int64_t read; /* number of samples that were read */
} model;

static const ad_batch_field fields[] = {{"x", AD_F64, {1, {3}}}};

static ad_status run_nothing(void *own, ad_phase_run *at) { return AD_OK; }

static ad_status add_module(oddity odd, const ad_mesh *view, ad_program *to) {
  ad_layout full = ad_layout_all(ad_program_mesh(to, 0), AD_R), layout = full;
  if (odd == PARAM_IS_I) ad_layout_set(&layout, AD_AXES(AD_DP_SHARD), AD_I);
  if (odd == PARAM_ON_VIEW || odd == VIEW_IS_I) layout = ad_layout_all(view, AD_R);
  if (odd == PARAM_ON_VIEW) ad_layout_set(&layout, AD_AXES(AD_EP), AD_S(0));
  if (odd == VIEW_IS_I) ad_layout_set(&layout, AD_AXES(AD_DP_SHARD), AD_I);
  ad_param_spec param = {.size = sizeof param,
                         .name = "w",
                         .shape = {1, {4}},
                         .layout = layout,
                         .storage = layout,
                         .sharded = AD_AXES(odd == PARAM_ON_VIEW ? AD_EFSDP : AD_DP_SHARD)};
  ad_state_spec state = {.size = sizeof state, .name = "s", .dtype = AD_F32, .shape = {1, {2}}, .layout = full};
  if (odd == SHARDED_STATE) ad_layout_set(&state.layout, AD_AXES(AD_DP_SHARD), AD_S(0));
  ad_module_spec spec = {.size = sizeof spec,
                         .name = "model",
                         .mesh = full.mesh,
                         .params = &param,
                         .param_count = 1,
                         .states = &state,
                         .state_count = odd == HAS_STATE || odd == SHARDED_STATE};
  return ad_program_add_module(to, &spec);
}

static ad_status create(const void *options, ad_program *to, void **out) {
  oddity odd = *(const oddity *)options;
  const ad_mesh *mesh = ad_program_mesh(to, 0);
  model *made;
  AD_TRY(ad_new(1, &made));
  *out = made;
  AD_TRY(ad_mesh_create_view(mesh, ad_mesh_size(mesh) == 2 ? "efsdp=1 ep=2" : "ep=1", &made->view));
  AD_TRY(add_module(odd, made->view, to));
  ad_layout rows = ad_layout_all(mesh, AD_R), counted = ad_layout_all(odd == COUNT_ON_VIEW ? made->view : mesh, AD_R);
  ad_layout_set(&rows, AD_AXES_DP, AD_S(0));
  AD_TRY(ad_program_add_batch(to, &rows, fields, 1, &made->batch));
  AD_TRY(ad_program_add_count(to, &(ad_count_spec){sizeof(ad_count_spec), "rows", counted}));
  AD_TRY(ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "loss"}));
  return ad_program_add_phase(to, &(ad_phase){.size = sizeof(ad_phase), .name = "model", .run = run_nothing});
}

static void destroy(void *own) {
  ad_mesh_destroy(((model *)own)->view);
  ad_release(own);
}

static ad_status read_row(void *own, ad_batch_row *row) {
  ((model *)own)->read++;
  ad_array_set(row->fields, row->row * 3, (double)row->sample);
  return AD_OK;
}

static ad_status read_batch(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  return ad_batch_read(((model *)own)->batch, step, validation, &(ad_row_reader){read_row, own}, counted[0]);
}

static const char *const modules[] = {"model", NULL}, *const two_modules[] = {"model", "other", NULL};
static const ad_program_kind kind = {.size = sizeof kind,
                                     .name = "leafy",
                                     .modules = modules,
                                     .options_size = sizeof(oddity),
                                     .create = create,
                                     .destroy = destroy,
                                     .read = read_batch};

/* The program of a rank with leaves 1 and 3. Rank 3 of "dp_replicate=2 dp_shard=1 tp=2" is on the second position. */
static ad_status make(const ad_program_kind *of, ad_comm *comm, const char *mesh, const oddity *odd, ad_program **out) {
  static const int64_t own[] = {1, 3};
  ad_program_setting setting = {.comm = comm,
                                .meshes = (const char *const[]){mesh, mesh},
                                .global_batch = BATCH,
                                .microbatches = LEAVES,
                                .leaves = LEAVES,
                                .own = own,
                                .own_count = 2,
                                .compute = AD_F64};
  return ad_program_create(of, odd, &setting, out);
}

static ad_program *usual_on(ad_comm *comm, const char *mesh) {
  static const oddity odd = USUAL;
  ad_program *program;
  must(make(&kind, comm, mesh, &odd, &program));
  return program;
}

static void tapes_have_one_position_and_the_module_has_all_ranks(void **state) {
  ad_comm *comm;
  must(ad_comm_open_dry(3, 4, &comm));
  ad_program *program = usual_on(comm, "dp_replicate=2 dp_shard=1 tp=2");
  const ad_mesh *tapes = ad_program_mesh(program, 0), *all = ad_program_full_mesh(program, 0);
  const ad_module_spec *module = ad_program_module(program, 0);
  const ad_layout *counted = &ad_program_count(program, 0)->layout;
  assert_string_equal(ad_mesh_text(tapes), "dp_replicate=1 dp_shard=1 tp=2");
  assert_int_equal(ad_mesh_first_rank(tapes), 2);
  assert_string_equal(ad_mesh_text(all), "dp_replicate=2 dp_shard=1 tp=2");
  assert_ptr_equal(module->mesh, all);
  assert_ptr_equal(module->params[0].layout.mesh, all);
  assert_ptr_equal(module->params[0].storage.mesh, all);
  assert_ptr_equal(counted->mesh, all);
  assert_int_equal(counted->type[AD_DP_REPLICATE], AD_P); /* each leaf is counted on one position */
  assert_int_equal(counted->type[AD_TP], AD_R);
  ad_program_destroy(program);
  ad_comm_close(comm);
}

static void a_rank_has_arrays_of_its_own_leaves(void **state) {
  ad_comm *comm;
  char name[32];
  must(ad_comm_open_dry(3, 4, &comm));
  ad_program *program = usual_on(comm, "dp_replicate=2 dp_shard=1 tp=2");
  const model *made = program->own;
  const ad_program_setting *setting = ad_program_setting_of(program);
  assert_int_equal(setting->own_count, 2);
  assert_int_equal(setting->own[1], 3);
  for (size_t m = 0; m < LEAVES; m++) {
    const ad_array *array = ad_batch_array(made->batch, 0, m);
    assert_int_equal(array->shape.dim[0], ad_cut(BATCH, (int64_t)m, LEAVES).count);
    assert_int_equal(array->local.dim[0], array->shape.dim[0]); /* a leaf's rows are all on one position */
  }
  assert_ptr_equal(ad_program_batch_array(program, 0, name, sizeof name), ad_batch_array(made->batch, 0, 1));
  assert_string_equal(name, "microbatch.1.x");
  assert_ptr_equal(ad_program_batch_array(program, 1, name, sizeof name), ad_batch_array(made->batch, 0, 3));
  assert_string_equal(name, "microbatch.3.x");
  assert_null(ad_program_batch_array(program, 2, name, sizeof name));
  assert_int_equal(ad_program_data_bytes(program), (2 + 2) * 3 * sizeof(double));
  ad_program_destroy(program);
  ad_comm_close(comm);
}

static void only_own_leaves_are_read_and_counted(void **state) {
  ad_comm *comm;
  int64_t counts[LEAVES] = {9, 9, 9, 9}, *counted[] = {counts};
  must(ad_comm_open_alone(&comm));
  ad_program *program = usual_on(comm, "dp_replicate=1 tp=1");
  model *made = program->own;
  must(kind.read(made, 2, AD_TRAINED_ON, counted));
  assert_int_equal(made->read, 4);
  assert_int_equal(counts[0], 0);
  assert_int_equal(counts[1], 2);
  assert_int_equal(counts[2], 0);
  assert_int_equal(counts[3], 2);
  assert_true(ad_array_get(ad_batch_array(made->batch, 0, 1), 0) == 2 * BATCH + 1); /* its first sample */
  assert_true(ad_array_get(ad_batch_array(made->batch, 0, 3), 0) == 2 * BATCH + 5);
  assert_null(ad_batch_array(made->batch, 0, 0)->data);
  ad_program_destroy(program);
  ad_comm_close(comm);
}

/* The view of one position becomes a view of all ranks with the mesh's data-parallel axes, on which ZeRO shards. */
static void parameters_on_a_view_are_stored_on_all_ranks(void **state) {
  static const oddity odd = PARAM_ON_VIEW;
  ad_comm *comm;
  ad_program *program;
  must(ad_comm_open_dry(5, 12, &comm));
  must(make(&kind, comm, "dp_replicate=3 dp_shard=2 tp=2", &odd, &program));
  const ad_param_spec *param = &ad_program_module(program, 0)->params[0];
  const model *made = program->own;
  assert_string_equal(ad_mesh_text(param->layout.mesh), "dp_replicate=3 dp_shard=2 efsdp=1 ep=2");
  assert_ptr_equal(param->storage.mesh, param->layout.mesh);
  assert_int_equal(param->sharded, AD_AXES(AD_DP_SHARD));
  assert_int_equal(param->layout.type[AD_EP], AD_S(0));
  assert_int_equal(param->layout.type[AD_DP_REPLICATE], AD_R);
  assert_int_equal(program->leaf_mesh_count, 2);
  assert_ptr_equal(program->leaf_meshes[1].own, made->view);
  ad_program_destroy(program);
  ad_comm_close(comm);
}

/* A program that promises to change states after steps alone has them on all ranks. */
static void states_that_change_after_steps_are_on_all_ranks(void **state) {
  static const oddity replicated = HAS_STATE, sharded = SHARDED_STATE;
  ad_program_kind promising = kind;
  ad_comm *comm;
  ad_program *program;
  promising.sums_leaves = 1;
  must(ad_comm_open_dry(3, 4, &comm));
  must(make(&promising, comm, "dp_replicate=2 dp_shard=1 tp=2", &replicated, &program));
  assert_ptr_equal(ad_program_module(program, 0)->states[0].layout.mesh, ad_program_full_mesh(program, 0));
  ad_program_destroy(program);
  assert_int_equal(make(&promising, comm, "dp_replicate=2 dp_shard=1 tp=2", &sharded, &program), AD_INVALID);
  assert_says("s", "dp_shard", "train.leaves");
  ad_comm_close(comm);
}

/* The part of a view that lies on one data-parallel position. */
static void a_view_is_divided_among_the_positions(void **state) {
  static const struct {
    const char *mesh, *view, *part; /* part NULL: refused, and `fact` is in the message */
    const char *fact;
  } cases[] = {{"dp_shard=3 tp=2", "ep=2 etp=1", "efsdp=1 ep=2 etp=1", NULL},
               {"dp_shard=3 tp=2", "efsdp=3 ep=2", "efsdp=1 ep=2", NULL},
               {"dp_replicate=3 dp_shard=2 tp=2", "etp=2", "efsdp=1 etp=2", NULL},
               {"dp_replicate=3 dp_shard=2 tp=2", "dp_replicate=3 ep=2", "dp_replicate=1 efsdp=1 ep=2", NULL},
               {"dp_shard=2 cp=2 tp=3", "ep=3 etp=2", "efsdp=1 ep=3 etp=2", NULL},
               {"dp_shard=2 cp=2 tp=3", "ep=3", "efsdp=2 ep=3", NULL},
               {"dp_replicate=2", "ep=1 etp=1", "efsdp=1 ep=1 etp=1", NULL},
               {"dp_shard=2 tp=2", "ep=4", NULL, "ep=2"},
               {"dp_shard=4", "efsdp=2 ep=2", NULL, "ep=1"},
               {"dp_shard=2 tp=2", "ep=2 efsdp=2", NULL, "efsdp"},
               {"dp_shard=6 tp=2", "ep=3 etp=2", NULL, "ep=2"},
               {"dp_replicate=3 dp_shard=2 tp=2", "efsdp=6 ep=2", NULL, "dp_replicate=3"},
               {"dp_replicate=3 dp_shard=2 tp=2", "dp_replicate=2 efsdp=3 ep=2", NULL, "dp_replicate=3"},
               {"dp_replicate=3 dp_shard=2", "efsdp=2 dp_replicate=3", NULL, "dp_replicate=3"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_mesh *mesh;
    char *part = NULL;
    must(ad_mesh_create(cases[i].mesh, &mesh));
    ad_status status = ad_leaves_view(mesh, cases[i].view, &part);
    if (cases[i].part) {
      must(status);
      assert_string_equal(part, cases[i].part);
    } else {
      assert_int_equal(status, AD_INVALID);
      assert_says_in(cases[i].view, ad_last_error(), SAYS_FACTS(cases[i].fact, "train.leaves"));
    }
    ad_release(part);
    ad_mesh_destroy(mesh);
  }
}

static void what_leaves_cannot_sum_is_refused(void **state) {
  static const struct {
    oddity odd;
    const char *facts[4];
  } cases[] = {{PARAM_IS_I, {"w", "dp_shard", "train.leaves"}},
               {VIEW_IS_I, {"w", "dp_shard", "train.leaves"}},
               {HAS_STATE, {"model", "s", "train.leaves"}},
               {COUNT_ON_VIEW, {"rows", "ep=2", "train.leaves"}}};
  ad_program_kind two = kind;
  ad_program *program = NULL;
  ad_comm *comm;
  two.modules = two_modules;
  must(ad_comm_open_dry(3, 4, &comm));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_status status = make(&kind, comm, "dp_replicate=2 dp_shard=1 tp=2", &cases[i].odd, &program);
    assert_int_equal(status, cases[i].odd == PARAM_IS_I || cases[i].odd == VIEW_IS_I ? AD_TYPE : AD_INVALID);
    assert_says_in(cases[i].facts[0], ad_last_error(), cases[i].facts);
  }
  assert_int_equal(make(&two, comm, "dp_replicate=2 dp_shard=1 tp=2", &cases[0].odd, &program), AD_INVALID);
  assert_says("leafy", "2", "train.leaves");
  assert_int_equal(make(&kind, comm, "tp=2 dp_replicate=2", &cases[0].odd, &program), AD_INVALID);
  assert_says("tp=2 dp_replicate=2", "tp");
  assert_null(program);
  ad_comm_close(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tapes_have_one_position_and_the_module_has_all_ranks),
      cmocka_unit_test(a_rank_has_arrays_of_its_own_leaves),
      cmocka_unit_test(only_own_leaves_are_read_and_counted),
      cmocka_unit_test(parameters_on_a_view_are_stored_on_all_ranks),
      cmocka_unit_test(states_that_change_after_steps_are_on_all_ranks),
      cmocka_unit_test(a_view_is_divided_among_the_positions),
      cmocka_unit_test(what_leaves_cannot_sum_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
