/* Tests every public function that can fail, header by header: a required argument that is NULL is refused by its name
 * in the header, and nothing is changed; so are sizes, types and numbers that are not valid. Functions of comm.h are in
 * core/tests/comm/test_calls.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "addend/addend.h"
#include "files/safetensors.h"
#include "mesh/object.h"
#include "module/module.h"
#include "optim/record.h"
#include "gpt/gpt.h"
#include "program/program.h"
#include "recipe/recipe.h"
#include "reduce/precision_policy.h"
#include "reduce/count.h"
#include "says.h"
#include "step/run.h"
#include "addend/helpers.h"
#include "data/weights.h"
#include "tensor/tape.h"

/* A message about an argument names the function that was called, as the header has it, and none inside the library. */
static void names_the_call(const char *call, int line) {
  const char *reported = ad_last_error(), *colon = strstr(reported, ": `");
  if (!strncmp(call, "ad_tape_status(", 15)) return; /* it reports another function's error */
  size_t length = strcspn(call, "("), named = colon ? (size_t)(colon - reported) : 0;
  if (strncmp(call, "ad_", 3) != 0 || !colon || strcspn(reported, " ") < named) return; /* another kind of message */
  if (named < length || strncmp(reported, call, length) != 0 ||
      (named > length && strncmp(reported + length, "_at", 3) != 0))
    fail_msg("line %d: %s: \"%s\" names another function", line, call, reported);
}

static void refused_at(ad_status status, const char *wrong, const char *call, int line) {
  if (status != AD_INVALID) fail_msg("line %d: %s, not invalid: %s", line, ad_status_name(status), ad_last_error());
  says_or_fail(wrong, __FILE__, line);
  names_the_call(call, line);
}
/* The call is refused with these facts: the argument and NULL, in the one sentence that all calls have for it. */
#define refused(call, ...)                                                                        \
  do {                                                                                            \
    ad_status of_call = (call);                                                                   \
    refused_at(of_call, says_missing(ad_last_error(), SAYS_FACTS(__VA_ARGS__)), #call, __LINE__); \
  } while (0)
/* The call is refused in its own words, which are in the list of the call. */
#define refused_call(call, ...)                                                                                  \
  do {                                                                                                           \
    ad_status of_call = (call);                                                                                  \
    refused_at(of_call, says_wrong(ad_last_error(), SAYS_FACTS(__VA_ARGS__), __FILE__, #call), #call, __LINE__); \
  } while (0)
#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

static const char recipe_text[] =
    "name: nulls\nmodel: {kind: gpt, layers: 1, d_model: 8, heads: 2}\n"
    "data: {text: [/usr/share/common-licenses], seq: 8}\nmesh: \"dp=1\"\n"
    "train: {global_batch: 1, steps: 1, lr: 1e-3}\n";

/* Valid arguments, which the refused calls also need. */
static ad_comm *comm;
static ad_mesh *mesh;
static ad_group group;
static ad_layout layout;
static const ad_layout astray; /* a layout without a mesh */
static const ad_shape shape = {1, {4}};
static ad_array array;
static ad_recipe *recipe;

static int make(void **state) {
  must(ad_comm_open_alone(&comm));
  must(ad_mesh_create("dp=1", &mesh));
  group = ad_mesh_group(mesh, AD_AXES_ALL, 0);
  layout = ad_layout_all(mesh, AD_R);
  must(ad_array_create(comm, AD_F32, &shape, &layout, &array));
  must(ad_recipe_parse(recipe_text, "nulls.yaml", NULL, 0, &recipe));
  return 0;
}

static int unmake(void **state) {
  ad_recipe_destroy(recipe);
  ad_array_destroy(comm, &array);
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
  return 0;
}

static void dtype_and_mesh(void **state) {
  ad_axes axes;
  ad_mesh *out = NULL;
  float value = 1;
  refused(ad_dtype_parse("f32", NULL), "ad_dtype_parse", "out", "NULL");
  refused(ad_cast(NULL, AD_F64, &value, AD_F32, 1), "ad_cast", "dst", "NULL");
  refused(ad_cast(&value, AD_F32, NULL, AD_F32, 1), "src", "NULL");
  refused_call(ad_cast(&value, AD_I32, &value, AD_F32, 1), "ad_cast", "f32", "i32");
  refused_call(ad_cast(&value, (ad_dtype)99, &value, (ad_dtype)99, 1), "ad_cast");
  must(ad_cast(NULL, AD_F64, NULL, AD_F32, 0));
  assert_true(value == 1);
  assert_true(ad_random_stream(NULL) == ad_random_stream(""));
  refused(ad_axes_parse(NULL, &axes), "text", "NULL");
  refused(ad_axes_parse("tp", NULL), "out", "NULL");
  refused(ad_mesh_create(NULL, &out), "text", "NULL");
  refused(ad_mesh_create("dp=1", NULL), "out", "NULL");
  refused(ad_mesh_create_pool(NULL, 0, &out), "text", "NULL");
  refused(ad_mesh_create_view(NULL, "dp=1", &out), "mesh", "NULL");
  refused(ad_mesh_create_view(mesh, NULL, &out), "text", "NULL");
  refused(ad_mesh_create_view(mesh, "dp=1", NULL), "out", "NULL");
  refused(ad_mesh_create_block(NULL, 0, &out), "ad_mesh_create_block", "mesh", "NULL");
  refused(ad_mesh_create_block(mesh, 0, NULL), "out", "NULL");
  refused_call(ad_mesh_check(NULL), "NULL");
  ad_axes in_a[AD_AXIS_COUNT], in_b[AD_AXIS_COUNT];
  assert_int_equal(ad_mesh_common_sets(NULL, mesh, in_a, in_b), 0);
  assert_says("a", "ad_mesh_common_sets", "NULL");
  assert_int_equal(ad_mesh_common_sets(mesh, NULL, in_a, in_b), 0);
  assert_int_equal(ad_mesh_common_sets(mesh, mesh, NULL, in_b), 0);
  assert_int_equal(ad_mesh_common_sets(mesh, mesh, in_a, NULL), 0);
  assert_says("in_b", "NULL");
  ad_mesh_destroy(NULL);
  assert_null(out);
}

static void layouts(void **state) {
  ad_layout out;
  ad_path_step steps[AD_AXIS_COUNT];
  int count = 0;
  const ad_layout *one[] = {&layout}, *none[] = {NULL}, *lost[] = {&astray};
  ad_rule rule = {.size = sizeof rule, .name = "double", .dims = "a->a"},
          nameless = {.size = sizeof nameless, .dims = "a->a"}, dimless = {.size = sizeof dimless, .name = "double"};
  refused(ad_layout_parse(NULL, "", &out), "mesh", "NULL");
  refused(ad_layout_parse(mesh, NULL, &out), "text", "NULL");
  refused(ad_layout_parse(mesh, "", NULL), "out", "NULL");
  refused(ad_layout_after_at(NULL, AD_MOVE_CONVERT, 0, AD_R, 1, &out, NULL), "layout", "NULL");
  refused(ad_layout_after_at(&layout, AD_MOVE_CONVERT, 0, AD_R, 1, NULL, NULL), "out", "NULL");
  refused(ad_layout_after_at(&astray, AD_MOVE_CONVERT, 0, AD_R, 1, &out, NULL), "layout->mesh", "NULL");
  refused(ad_layout_path(NULL, &layout, steps, &count), "gradient", "NULL");
  refused(ad_layout_path(&layout, NULL, steps, &count), "storage", "NULL");
  refused(ad_layout_path(&layout, &layout, NULL, &count), "steps", "NULL");
  refused(ad_layout_path(&layout, &layout, steps, NULL), "count", "NULL");
  refused(ad_layout_path(&layout, &astray, steps, &count), "storage->mesh", "NULL");
  refused(ad_layout_propagate_at(NULL, one, NULL, 1, &out, NULL), "rule", "NULL");
  refused(ad_layout_propagate_at(&nameless, one, NULL, 1, &out, NULL), "rule->name", "NULL");
  refused(ad_layout_propagate_at(&dimless, one, NULL, 1, &out, NULL), "rule->dims", "NULL");
  refused(ad_layout_propagate_at(&rule, NULL, NULL, 1, &out, NULL), "operands", "NULL");
  refused(ad_layout_propagate_at(&rule, none, NULL, 1, &out, NULL), "operands[i]", "NULL");
  refused(ad_layout_propagate_at(&rule, lost, NULL, 1, &out, NULL), "operands[i]->mesh", "NULL");
  refused(ad_layout_propagate_at(&rule, one, NULL, 1, NULL, NULL), "out", "NULL");
  refused(ad_layout_view_at(NULL, mesh, &out, NULL), "layout", "NULL");
  refused(ad_layout_view_at(&layout, NULL, &out, NULL), "view", "NULL");
  refused(ad_layout_view_at(&layout, mesh, NULL, NULL), "out", "NULL");
  refused(ad_layout_view_at(&astray, mesh, &out, NULL), "layout->mesh", "NULL");
}

static void arrays(void **state) {
  ad_array out = array, lost = {.dtype = AD_F32};
  const ad_array *none[] = {NULL}, *lost_list[] = {&lost};
  ad_request request;
  double sum;
  size_t rows = 4;
  const ad_shape nonsense = {AD_DIMS_MAX + 1, {0}}, negative = {1, {-4}};
  refused(ad_array_create(NULL, AD_F32, &shape, &layout, &out), "comm", "NULL");
  refused(ad_array_create(comm, AD_F32, NULL, &layout, &out), "shape", "NULL");
  refused(ad_array_create(comm, AD_F32, &shape, NULL, &out), "layout", "NULL");
  refused(ad_array_create(comm, AD_F32, &shape, &layout, NULL), "out", "NULL");
  refused(ad_array_create(comm, AD_F32, &shape, &astray, &out), "layout->mesh", "NULL");
  refused_call(ad_array_create(comm, (ad_dtype)0, &shape, &layout, &out), "ad_array_create", "0");
  refused_call(ad_array_create(comm, AD_F32, &nonsense, &layout, &out), "ad_array_create", "7", "0", "6");
  refused_call(ad_array_create(comm, AD_F32, &negative, &layout, &out), "ad_array_create", "dimension 0", "-4");
  refused(ad_array_after_at(NULL, &array, AD_MOVE_ONCE, 0, AD_P, &out, NULL), "comm", "NULL");
  refused(ad_array_after_at(comm, NULL, AD_MOVE_ONCE, 0, AD_P, &out, NULL), "in", "NULL");
  refused(ad_array_after_at(comm, &array, AD_MOVE_ONCE, 0, AD_P, NULL, NULL), "out", "NULL");
  refused(ad_array_after_at(comm, &lost, AD_MOVE_ONCE, 0, AD_P, &out, NULL), "in->layout.mesh", "NULL");
  refused(ad_array_move_at(NULL, &array, AD_MOVE_ONCE, 0, AD_P, AD_F32, &out, NULL), "comm", "NULL");
  refused(ad_array_move_at(comm, NULL, AD_MOVE_ONCE, 0, AD_P, AD_F32, &out, NULL), "in", "NULL");
  refused(ad_array_move_at(comm, &array, AD_MOVE_ONCE, 0, AD_P, AD_F32, NULL, NULL), "out", "NULL");
  refused(ad_array_post_at(NULL, &array, AD_MOVE_ALL_REDUCE, 0, AD_R, AD_F32, &out, &request, NULL), "comm", "NULL");
  refused(ad_array_post_at(comm, NULL, AD_MOVE_ALL_REDUCE, 0, AD_R, AD_F32, &out, &request, NULL), "in", "NULL");
  refused(ad_array_post_at(comm, &array, AD_MOVE_ALL_REDUCE, 0, AD_R, AD_F32, NULL, &request, NULL), "out", "NULL");
  refused(ad_array_post_at(comm, &array, AD_MOVE_ALL_REDUCE, 0, AD_R, AD_F32, &out, NULL, NULL), "request", "NULL");
  refused_call(ad_array_post_at(comm, &array, AD_MOVE_CONVERT, 0, AD_R, AD_F32, &out, &request, NULL), "post",
               "ad_array_move");
  refused(ad_array_exchange_at(NULL, &array, 0, &rows, &rows, &out, NULL), "comm", "NULL");
  refused(ad_array_exchange_at(comm, NULL, 0, &rows, &rows, &out, NULL), "in", "NULL");
  refused(ad_array_exchange_at(comm, &array, 0, NULL, &rows, &out, NULL), "send_rows", "NULL");
  refused(ad_array_exchange_at(comm, &array, 0, &rows, NULL, &out, NULL), "receive_rows", "NULL");
  refused(ad_array_exchange_at(comm, &array, 0, &rows, &rows, NULL, NULL), "out", "NULL");
  refused(ad_array_add_at(NULL, &array, NULL), "to", "NULL");
  refused(ad_array_add_at(&array, NULL, NULL), "from", "NULL");
  refused(ad_array_add_at(&array, &lost, NULL), "from->layout.mesh", "NULL");
  refused(ad_array_full_at(NULL, &array, &out, NULL), "comm", "NULL");
  refused(ad_array_full_at(comm, NULL, &out, NULL), "in", "NULL");
  refused(ad_array_full_at(comm, &array, NULL, NULL), "out", "NULL");
  refused(ad_array_from_full_at(NULL, &out, &array, NULL), "comm", "NULL");
  refused(ad_array_from_full_at(comm, NULL, &array, NULL), "full", "NULL");
  refused(ad_array_from_full_at(comm, &out, NULL, NULL), "to", "NULL");
  refused(ad_array_from_full_at(comm, &out, &lost, NULL), "to->layout.mesh", "NULL");
  refused(ad_array_full_for_at(NULL, &group, mesh, &array, &out, NULL), "comm", "NULL");
  refused(ad_array_full_for_at(comm, NULL, mesh, &array, &out, NULL), "all", "NULL");
  refused(ad_array_full_for_at(comm, &group, NULL, &array, &out, NULL), "mesh", "NULL");
  refused(ad_array_full_for_at(comm, &group, mesh, NULL, &out, NULL), "in", "NULL");
  refused(ad_array_full_for_at(comm, &group, mesh, &array, NULL, NULL), "out", "NULL");
  refused(ad_array_uniform_at(NULL, 1, "u", 0, 0, &out, NULL), "comm", "NULL");
  refused(ad_array_uniform_at(comm, 1, NULL, 0, 0, &out, NULL), "name", "NULL");
  refused(ad_array_uniform_at(comm, 1, "u", 0, 0, NULL, NULL), "array", "NULL");
  refused(ad_array_uniform_at(comm, 1, "u", 0, 0, &lost, NULL), "array->layout.mesh", "NULL");
  refused(ad_array_square_sum_at(NULL, &group, none, 0, &sum, NULL), "comm", "NULL");
  refused(ad_array_square_sum_at(comm, NULL, none, 0, &sum, NULL), "group", "NULL");
  refused(ad_array_square_sum_at(comm, &(ad_group){0}, none, 0, &sum, NULL), "group->mesh", "NULL");
  refused(ad_array_square_sum_at(comm, &group, NULL, 1, &sum, NULL), "arrays", "NULL");
  refused_call(ad_array_square_sum_at(comm, &group, none, 1, &sum, NULL), "NULL");
  refused_call(ad_array_square_sum_at(comm, &group, lost_list, 1, &sum, NULL), NULL);
  refused(ad_array_square_sum_at(comm, &group, NULL, 0, NULL, NULL), "out", "NULL");
  must(ad_array_square_sum_at(comm, &group, NULL, 0, &sum, NULL));
  assert_true(sum == 0);
}

static void bridges(void **state) {
  ad_bridge *bridge = NULL;
  ad_bridge_options unsized = {.ragged = 1};
  int64_t rows = 7;
  ad_layout sharded = layout;
  ad_layout_set(&sharded, AD_AXES_DP, AD_S(0));
  refused(ad_bridge_create(NULL, &sharded, &sharded, NULL, &bridge), "comm", "NULL");
  refused(ad_bridge_check(NULL, &sharded, NULL), "ad_bridge_check", "from", "NULL");
  refused(ad_bridge_check(&sharded, NULL, NULL), "to", "NULL");
  refused(ad_bridge_check(&astray, &sharded, NULL), "from->mesh", "NULL");
  refused(ad_bridge_check(&sharded, &astray, NULL), "to->mesh", "NULL");
  refused_call(ad_bridge_check(&sharded, &sharded, &unsized), "ad_bridge_options", "size");
  refused(ad_bridge_rows_multiple(NULL, &sharded, NULL, &rows), "ad_bridge_rows_multiple", "from", "NULL");
  refused(ad_bridge_rows_multiple(&sharded, NULL, NULL, &rows), "to", "NULL");
  refused(ad_bridge_rows_multiple(&sharded, &sharded, NULL, NULL), "out", "NULL");
  refused(ad_bridge_rows_multiple(&astray, &sharded, NULL, &rows), "from->mesh", "NULL");
  refused(ad_bridge_rows_multiple(&sharded, &astray, NULL, &rows), "to->mesh", "NULL");
  refused_call(ad_bridge_rows_multiple(&sharded, &sharded, &unsized, &rows), "ad_bridge_options", "size");
  assert_int_equal(rows, 7);
  assert_null(bridge);
  ad_request request = {0};
  refused(ad_bridge_forward(NULL, &array, &array), "bridge", "NULL");
  refused(ad_bridge_backward(NULL, &array, &array), "bridge", "NULL");
  refused(ad_bridge_post_forward(NULL, &array, &array, &request), "bridge", "NULL");
  refused(ad_bridge_post_backward(NULL, &array, &array, &request), "bridge", "NULL");
  must(ad_bridge_create(comm, &layout, &layout, NULL, &bridge));
  refused(ad_bridge_post_forward(bridge, &array, &array, NULL), "out", "NULL");
  refused(ad_bridge_post_backward(bridge, &array, &array, NULL), "out", "NULL");
  ad_bridge_destroy(bridge);
}

static void experts(void **state) {
  ad_tape *tape;
  ad_declarations list = ad_declarations_on(mesh);
  ad_experts_shape wanted = {.size = sizeof wanted, .d_model = 4, .experts = 2, .hidden = 4, .top_k = 1, .view = mesh};
  ad_experts_layer layer = ad_experts_declare(NULL, "moe", &wanted);
  ad_tensor *params[4] = {NULL};
  const ad_decisions none = {NULL, 0};
  assert_null(layer.shape.view);
  assert_says("to", "ad_experts_declare", "NULL");
  ad_experts_declare(&list, NULL, &wanted);
  refused(list.status, "ad_experts_declare", "path", "NULL");
  list.status = AD_OK;
  ad_experts_declare(&list, "moe", NULL);
  refused(list.status, "ad_experts_declare", "shape", "NULL");
  list.status = AD_OK;
  layer = ad_experts_declare(&list, "moe", &wanted);
  must(list.status);
  assert_null(ad_experts_forward(NULL, params, &layer, NULL, NULL, none, NULL));
  assert_says("NULL");
  must(ad_tape_create(comm, mesh, NULL, &tape));
  ad_experts_forward(tape, NULL, &layer, NULL, NULL, none, NULL);
  refused(ad_tape_status(tape), "ad_experts_forward", "params", "NULL");
  ad_tape_reset(tape);
  ad_experts_forward(tape, params, NULL, NULL, NULL, none, NULL);
  refused(ad_tape_status(tape), "ad_experts_forward", "layer", "NULL");
  ad_tape_destroy(tape);
  ad_declarations_release(&list);
  assert_null(ad_routing_choices(NULL, NULL));
  assert_says("count", "ad_routing_choices", "NULL");
}

static void reducers_and_counts(void **state) {
  ad_reducer *reducer = NULL;
  ad_count *count = NULL;
  ad_param_spec spec = {.size = sizeof spec, .name = "w", .shape = shape, .layout = layout, .storage = layout};
  ad_array out;
  int adds;
  double norm;
  int64_t sum;
  refused(ad_precision_policy_complete(NULL), "policy", "NULL");
  refused(ad_reducer_create(NULL, &spec, 1, NULL, &reducer), "comm", "NULL");
  refused(ad_reducer_create(comm, NULL, 1, NULL, &reducer), "params", "NULL");
  refused(ad_reducer_create(comm, &spec, 1, NULL, NULL), "out", "NULL");
  refused_call(ad_reducer_begin_microbatch(NULL, AD_SYNC_ALL), "NULL");
  refused_call(ad_reducer_begin_leaf(NULL, AD_SYNC_ALL, 0), "NULL");
  assert_int_equal(ad_reducer_leaf(NULL, 0), -1);
  refused_call(ad_reducer_target(NULL, 0, &out, &adds), "NULL");
  refused_call(ad_reducer_add_at(NULL, 0, &array, NULL), "NULL");
  refused_call(ad_reducer_end_microbatch(NULL), "NULL");
  refused_call(ad_reducer_finish(NULL), "NULL");
  refused_call(ad_reducer_step(NULL, NULL), "NULL");
  refused_call(ad_reducer_norm(NULL, &group, &norm), "NULL");
  refused(ad_reducer_dump(NULL, ".", 0, 0), "reducer", "NULL");
  refused(ad_reducer_divided_by(NULL, 1), "reducer", "NULL");
  refused(ad_reducer_reported(NULL, 1), "reducer", "NULL");
  must(ad_reducer_create(comm, &spec, 1, NULL, &reducer));
  refused(ad_reducer_dump(reducer, NULL, 0, 0), "folder", "NULL");
  must(ad_reducer_begin_microbatch(reducer, AD_SYNC_ALL));
  refused(ad_reducer_target(reducer, 0, NULL, &adds), "out", "NULL");
  refused(ad_reducer_target(reducer, 0, &out, NULL), "adds", "NULL");
  refused(ad_reducer_norm(reducer, NULL, &norm), "group", "NULL");
  refused(ad_reducer_norm(reducer, &group, NULL), "out", "NULL");
  ad_reducer_destroy(reducer);
  ad_layout addends = ad_layout_all(mesh, AD_P);
  refused(ad_count_create(NULL, &addends, 1, &count), "comm", "NULL");
  refused(ad_count_create(comm, NULL, 1, &count), "local", "NULL");
  refused(ad_count_create(comm, &(ad_layout){0}, 1, &count), "local->mesh", "NULL");
  refused(ad_count_create(comm, &addends, 1, NULL), "out", "NULL");
  must(ad_count_create(comm, &addends, 1, &count));
  refused(ad_count_post_at(NULL, &(int64_t){1}, NULL), "count", "NULL");
  refused(ad_count_post_at(count, NULL, NULL), "local", "NULL");
  refused(ad_count_wait(NULL, &sum), "count", "NULL");
  must(ad_count_post_at(count, &(int64_t){1}, NULL));
  must(ad_count_wait(count, NULL));  // a caller that only waits may give no total
  must(ad_count_wait(count, &sum));
  assert_int_equal(sum, 1);
  assert_null(ad_count_array(NULL));
  assert_int_equal(ad_count_of(NULL, 0), -1);
  ad_count_destroy(count);
  ad_count_destroy(NULL);
  ad_reducer_destroy(NULL);
}

static void stores(void **state) {
  ad_store *store = NULL;
  ad_param_spec spec = {.size = sizeof spec, .name = "w", .shape = shape, .layout = layout, .storage = layout},
                nameless = spec;
  ad_param_spec lost = {.size = sizeof lost, .name = "w", .shape = shape, .layout = layout};
  nameless.name = NULL;
  refused(ad_store_create(NULL, &spec, 1, NULL, &store), "comm", "NULL");
  refused(ad_store_create(comm, NULL, 1, NULL, &store), "params", "NULL");
  refused(ad_store_create(comm, &nameless, 1, NULL, &store), "params[i].name", "NULL");
  refused(ad_store_create(comm, &lost, 1, NULL, &store), "params[i].storage.mesh", "NULL");
  refused(ad_store_create(comm, &spec, 1, NULL, NULL), "out", "NULL");
  refused(ad_store_refresh(NULL, AD_VALUES_WRITTEN), "store", "NULL");
  refused(ad_store_begin_pass(NULL, AD_FORWARD), "store", "NULL");
  refused(ad_store_acquire(NULL, 0), "store", "NULL");
  refused(ad_store_end_pass(NULL), "store", "NULL");
  must(ad_store_create(comm, &spec, 1, NULL, &store));
  refused_call(ad_store_acquire(store, 1), "parameter 1", "1");
  ad_store_destroy(store);
  ad_store_destroy(NULL);
}

/* Operations without a tape return NULL; other calls accept NULL as they accept a tensor of a failed tape. */
static void tensors(void **state) {
  ad_tape *tape = NULL;
  refused(ad_tape_create(NULL, mesh, NULL, &tape), "comm", "NULL");
  refused(ad_tape_create(comm, NULL, NULL, &tape), "mesh", "NULL");
  refused(ad_tape_create(comm, mesh, NULL, NULL), "out", "NULL");
  refused(ad_tape_status(NULL), "tape", "NULL");
  refused(ad_backward(NULL, NULL), "tape", "NULL");
  refused(ad_backward_from(NULL, NULL, NULL, 0, AD_LAST_START), "tape", "NULL");
  refused(ad_backward_weights(NULL), "tape", "NULL");
  assert_null(ad_constant(NULL, &array));
  assert_null(ad_input(NULL, &array));
  assert_null(ad_parameter_at(NULL, &(ad_parameters){.size = sizeof(ad_parameters)}, 0, NULL));
  assert_null(ad_view(NULL, NULL, mesh));
  assert_null(ad_divide(NULL, NULL, NULL));
  assert_null(ad_scale_by(NULL, NULL, NULL));
  assert_null(ad_norm_over(NULL, NULL, 0));
  assert_null(ad_binary_cross_entropy(NULL, NULL, NULL));
  assert_null(ad_tape_fail(NULL, AD_IO));
  assert_null(ad_tape_comm(NULL));
  assert_null(ad_tape_mesh(NULL));
  assert_int_equal(ad_tape_peak_bytes(NULL), 0);
  assert_null(ad_share(NULL, NULL, NULL, 0));
  must(ad_tape_create(comm, mesh, NULL, &tape));
  refused(ad_backward_from(tape, NULL, NULL, 1, AD_LAST_START), "outputs", "NULL");
  ad_parameter(tape, NULL, 0);
  refused(ad_tape_status(tape), "from", "NULL");
  ad_tape_reset(tape);
  ad_input(tape, NULL);
  refused_call(ad_tape_status(tape), "NULL");
  ad_tape_reset(tape);
  assert_null(ad_tensor_array(ad_tape_fail(tape, AD_OK)));
  refused_call(ad_tape_status(tape), "ad_tape_fail", "AD_OK");
  ad_tape_destroy(tape);
  assert_null(ad_add(NULL, NULL, NULL));
  assert_says("NULL");
  assert_null(ad_all_reduce(NULL, NULL, "tp", AD_R));
  assert_says("all_reduce", "NULL");
  assert_null(ad_tensor_array(NULL));
  assert_null(ad_grad(NULL));
  assert_true(isnan(ad_tensor_scalar(NULL)));
  ad_keep(NULL);
  ad_forget(NULL, NULL);
  ad_tape_destroy(NULL);
}

static void tensors_that_are_missing_stick_to_the_tape(void **state) {
  ad_tape *tape;
  must(ad_tape_create(comm, mesh, NULL, &tape));
  ad_tensor *wrong[] = {ad_constant_at(tape, NULL, NULL), NULL, NULL, NULL, NULL};
  refused_call(ad_tape_status(tape), "NULL");
  ad_tape_reset(tape);
  wrong[1] = ad_add_at(tape, NULL, NULL, NULL);
  refused_call(ad_tape_status(tape), "add", "operand 1", "NULL");
  ad_tape_reset(tape);
  wrong[2] = ad_attention(tape, ad_constant(tape, &array), NULL, NULL, 4);
  refused_call(ad_tape_status(tape), "attention", "operand 2", "NULL");
  ad_tape_reset(tape);
  wrong[2] = ad_attention_all(tape, ad_constant(tape, &array), NULL, NULL, 4);
  refused_call(ad_tape_status(tape), "attention", "operand 2", "NULL");
  ad_tape_reset(tape);
  wrong[3] = ad_move_at(tape, ad_constant(tape, &array), AD_MOVE_ONCE, NULL, AD_P, NULL);
  refused_call(ad_tape_status(tape), "once", "ad_axes_parse", "text", "NULL");
  ad_tape_reset(tape);
  wrong[4] = ad_convert(tape, NULL, "tp", AD_R);
  refused_call(ad_tape_status(tape), "move", "operand 1", "NULL");
  for (int i = 0; i < 5; i++) assert_null(ad_tensor_array(wrong[i]));
  ad_tape_destroy(tape);
}

static void optimizers_and_parameters(void **state) {
  ad_optimizer *optimizer = NULL;
  const ad_array *params[] = {&array}, *none[] = {NULL}, *grads[] = {NULL};
  ad_array *updated[] = {&array}, *missing[] = {NULL}, lost = {.dtype = AD_F32, .shape = shape};
  ad_param_spec declaration = {.size = sizeof declaration, .name = "w", .shape = shape, .layout = layout};
  refused(ad_optimizer_create(params, NULL, 1, NULL, NULL), "out", "NULL");
  refused(ad_optimizer_create(NULL, NULL, 1, NULL, &optimizer), "params", "NULL");
  refused(ad_optimizer_create(none, NULL, 1, NULL, &optimizer), "params[i]", "NULL");
  must(ad_optimizer_create(params, NULL, 1, NULL, &optimizer));
  refused(ad_optimizer_step_at(NULL, updated, grads, 1, 1, NULL), "optimizer", "NULL");
  refused(ad_optimizer_set_steps(NULL, 1), "optimizer", "NULL");
  refused(ad_schedule_at(NULL, 0, &(double){0}), "schedule", "NULL");
  refused(ad_schedule_at(&(ad_schedule){.size = sizeof(ad_schedule)}, 0, NULL), "out", "NULL");
  refused(ad_clip_factor(1, 1, NULL), "out", "NULL");
  refused(ad_optimizer_step_at(optimizer, NULL, grads, 1, 1, NULL), "params", "NULL");
  refused(ad_optimizer_step_at(optimizer, missing, grads, 1, 1, NULL), "params[i]", "NULL");
  refused(ad_optimizer_step_at(optimizer, updated, NULL, 1, 1, NULL), "grads", "NULL");
  assert_int_equal(ad_optimizer_steps(optimizer), 0);
  ad_optimizer_destroy(optimizer);
  ad_optimizer_destroy(NULL);
  refused(ad_param_initialise(NULL, 1, 0, &array), "spec", "NULL");
  refused(ad_param_initialise(&declaration, 1, 0, NULL), "value", "NULL");
  refused(ad_param_initialise(&declaration, 1, 0, &lost), "value->layout.mesh", "NULL");
}

static void data_and_files(void **state) {
  ad_text_data *text = NULL;
  ad_safetensors *file = NULL;
  ad_safetensors_writer *writer = NULL;
  const char *const nowhere[] = {NULL}, *const somewhere[] = {"/usr/share/common-licenses"};
  const ad_safetensor nameless = {.dtype = AD_F32, .shape = shape}, tensor = {.name = "w", AD_F32, shape, NULL, 0};
  char path[] = "/tmp/addend-nulls-XXXXXX";
  refused(ad_text_data_open(NULL, 1, 4, 0, &text), "paths", "NULL");
  refused(ad_text_data_open(nowhere, 1, 4, 0, &text), "paths[i]", "NULL");
  refused(ad_text_data_open(somewhere, 1, 4, 0, NULL), "out", "NULL");
  refused(ad_text_data_open_unread(NULL, 1, 4, 0, &text), "paths", "NULL");
  refused(ad_text_data_open_unread(somewhere, 1, 4, 0, NULL), "out", "NULL");
  refused(ad_text_data_check(NULL, 1, 4, 0), "paths", "NULL");
  refused(ad_text_data_check(nowhere, 1, 4, 0), "paths[i]", "NULL");
  refused(ad_text_path_check(NULL), "path", "NULL");
  ad_line_options drawn = {0};
  ad_line_data *lines = NULL;
  ad_line line;
  uint8_t characters[1];
  float picture[1];
  refused(ad_line_font_check(NULL, "font"), "options", "NULL");
  refused(ad_line_font_check(&drawn, NULL), "path", "NULL");
  refused(ad_line_data_open(NULL, &lines), "options", "NULL");
  refused(ad_line_data_open(&drawn, NULL), "out", "NULL");
  refused(ad_line_data_draw(NULL, 1, AD_TRAINING_PART, 0, &line, characters, picture), "lines", "NULL");
  refused(ad_safetensors_open(NULL, &file), "path", "NULL");
  refused(ad_safetensors_open("x", NULL), "out", "NULL");
  refused(ad_safetensors_parse(NULL, 8, "x", &file), "bytes", "NULL");
  refused(ad_safetensors_parse("12345678", 8, NULL, &file), "path", "NULL");
  refused(ad_safetensors_parse("12345678", 8, "x", NULL), "out", "NULL");
  refused(ad_safetensors_create(NULL, &tensor, 1, NULL, &writer), "path", "NULL");
  refused(ad_safetensors_create("/nowhere/x", NULL, 1, NULL, &writer), "tensors", "NULL");
  refused(ad_safetensors_create("/nowhere/x", &nameless, 1, NULL, &writer), "tensors[i].name", "NULL");
  refused(ad_safetensors_create("/nowhere/x", &tensor, 1, NULL, NULL), "out", "NULL");
  ad_weights *weights = NULL;
  ad_param_spec param = {.size = sizeof param, .name = "w", .shape = shape};
  refused(ad_safetensors_check_values(NULL), "file", "NULL");
  refused(ad_weights_open(NULL, &weights), "ad_weights_open", "path", "NULL");
  refused(ad_weights_open("x", NULL), "out", "NULL");
  refused(ad_params_check_weights(&param, 1, NULL), "weights", "NULL");
  assert_string_equal(ad_weights_path(NULL), "");
  assert_null(ad_weights_file(NULL, 0));
  assert_null(ad_weights_find(NULL, "w"));
  ad_weights_close(NULL);
  assert_true(ad_checksum(NULL, 8, 0) == ad_checksum("", 0, 0));
  refused(ad_safetensors_add(NULL, &array), "writer", "NULL");
  refused(ad_safetensors_finish(NULL, NULL, NULL), "writer", "NULL");
  assert_non_null(mkdtemp(path));
  char name[64];
  snprintf(name, sizeof name, "%s/file", path);
  must(ad_safetensors_create(name, &tensor, 1, NULL, &writer));
  refused(ad_safetensors_add(writer, NULL), "data", "NULL");
  ad_safetensors_writer_destroy(writer);
  ad_safetensors_writer_destroy(NULL);
  ad_safetensors_close(NULL);
  assert_int_equal(remove(path), 0);
}

static void checkpoints(void **state) {
  ad_checkpointer *checkpointer = NULL;
  const ad_checkpoint_value nameless[] = {{NULL, &array}}, empty[] = {{"w", NULL}};
  ad_checkpoint_number number[] = {{NULL, 1}};
  ad_checkpoint_state listless = {.size = sizeof listless, .value_count = 1},
                      first = {.size = sizeof first, .values = nameless, .value_count = 1};
  ad_checkpoint_state second = {.size = sizeof second, .values = empty, .value_count = 1},
                      third = {.size = sizeof third, .numbers = number, .number_count = 1};
  char folder[] = "/tmp/addend-nulls-XXXXXX";
  assert_non_null(mkdtemp(folder));
  refused(ad_checkpointer_create(NULL, mesh, folder, 1, &checkpointer), "comm", "NULL");
  refused(ad_checkpointer_create(comm, NULL, folder, 1, &checkpointer), "mesh", "NULL");
  refused(ad_checkpointer_create(comm, mesh, NULL, 1, &checkpointer), "folder", "NULL");
  refused(ad_checkpointer_create(comm, mesh, folder, 1, NULL), "out", "NULL");
  must(ad_checkpointer_create(comm, mesh, folder, 1, &checkpointer));
  refused(ad_checkpointer_save(NULL, &first), "checkpointer", "NULL");
  refused(ad_checkpointer_save(checkpointer, NULL), "state", "NULL");
  refused(ad_checkpointer_save(checkpointer, &listless), "state->values", "NULL");
  refused_call(ad_checkpointer_save(checkpointer, &first), "checkpoint", "value 0");
  refused_call(ad_checkpointer_save(checkpointer, &second), "checkpoint", "value 0");
  refused_call(ad_checkpointer_save(checkpointer, &third), "checkpoint", "number 0");
  refused(ad_checkpointer_poll(NULL), "checkpointer", "NULL");
  refused(ad_checkpointer_finish(NULL), "checkpointer", "NULL");
  refused(ad_checkpoint_load(NULL, mesh, folder, &listless), "comm", "NULL");
  refused(ad_checkpoint_load(comm, NULL, folder, &listless), "mesh", "NULL");
  refused(ad_checkpoint_load(comm, mesh, NULL, &listless), "folder", "NULL");
  refused(ad_checkpoint_load(comm, mesh, folder, NULL), "state", "NULL");
  refused(ad_checkpoint_load(comm, mesh, folder, &listless), "state->values", "NULL");
  ad_checkpointer_destroy(checkpointer);
  ad_checkpointer_destroy(NULL);
  assert_int_equal(remove(folder), 0);
}

static void recipes_and_plans(void **state) {
  ad_recipe *out = NULL;
  ad_program *program = NULL;
  int64_t ranks;
  ad_precision_policy policy;
  char *text = NULL;
  const char *const sets[] = {NULL};
  refused(ad_recipe_read(NULL, NULL, 0, &out), "path", "NULL");
  refused(ad_recipe_read("x", NULL, 0, NULL), "out", "NULL");
  refused(ad_recipe_read("x", NULL, 1, &out), "sets", "NULL");
  refused(ad_recipe_parse(NULL, "x", NULL, 0, &out), "text", "NULL");
  refused(ad_recipe_parse("", NULL, NULL, 0, &out), "path", "NULL");
  refused(ad_recipe_parse("", "x", sets, 1, &out), "sets[i]", "NULL");
  refused(ad_recipe_parse("", "x", NULL, 0, NULL), "out", "NULL");
  refused(ad_recipe_print(NULL, &text), "recipe", "NULL");
  refused(ad_recipe_print(recipe, NULL), "out", "NULL");
  refused(ad_recipe_keys(NULL), "out", "NULL");
  refused(ad_recipe_world(NULL, &ranks), "recipe", "NULL");
  refused(ad_recipe_world(recipe, NULL), "out", "NULL");
  refused(ad_recipe_program(NULL, comm, AD_F64, &program), "recipe", "NULL");
  refused(ad_recipe_program(recipe, NULL, AD_F64, &program), "comm", "NULL");
  refused(ad_recipe_program(recipe, comm, AD_F64, NULL), "out", "NULL");
  refused(ad_recipe_precision_policy(NULL, "w", &policy), "recipe", "NULL");
  refused(ad_recipe_precision_policy(recipe, NULL, &policy), "param", "NULL");
  refused(ad_recipe_precision_policy(recipe, "w", NULL), "out", "NULL");
  refused(ad_plan_json(NULL, NULL, &text), "recipe", "NULL");
  refused(ad_plan_json(recipe, NULL, NULL), "out", "NULL");
  refused(ad_plan_table(NULL, NULL, &text), "recipe", "NULL");
  refused(ad_plan_table(recipe, NULL, NULL), "out", "NULL");
  ad_recipe_destroy(NULL);
}

static void modules(void **state) {
  ad_module *module = NULL;
  ad_param_spec param = {.size = sizeof param, .name = "w", .shape = shape, .layout = layout, .storage = layout},
                nameless = param;
  ad_param_spec lost = {.size = sizeof lost, .name = "w", .shape = shape, .layout = layout};
  ad_state_spec state_spec = {
      .size = sizeof state_spec, .name = NULL, .dtype = AD_F32, .shape = shape, .layout = layout};
  ad_module_spec spec = {.size = sizeof spec, .name = "m", .mesh = mesh, .params = &param, .param_count = 1},
                 wrong = spec;
  nameless.name = NULL;
  refused(ad_module_create(NULL, &spec, NULL, &module), "comm", "NULL");
  refused(ad_module_create(comm, NULL, NULL, &module), "spec", "NULL");
  refused(ad_module_create(comm, &spec, NULL, NULL), "out", "NULL");
  wrong.name = NULL;
  refused(ad_module_create(comm, &wrong, NULL, &module), "spec->name", "NULL");
  wrong = spec, wrong.mesh = NULL;
  refused(ad_module_create(comm, &wrong, NULL, &module), "spec->mesh", "NULL");
  wrong = spec, wrong.params = NULL;
  refused(ad_module_create(comm, &wrong, NULL, &module), "spec->params", "NULL");
  wrong.params = &nameless;
  refused_call(ad_module_create(comm, &wrong, NULL, &module), "parameter 0");
  wrong.params = &lost;
  refused_call(ad_module_create(comm, &wrong, NULL, &module), "parameter 0");
  wrong = spec, wrong.state_count = 1;
  refused(ad_module_create(comm, &wrong, NULL, &module), "spec->states", "NULL");
  wrong.states = &state_spec;
  refused_call(ad_module_create(comm, &wrong, NULL, &module), "state 0");
  state_spec.name = "s", state_spec.layout = astray;
  refused_call(ad_module_create(comm, &wrong, NULL, &module), "state 0");
  assert_null(module);
  refused(ad_module_refresh(NULL, AD_VALUES_WRITTEN), "module", "NULL");
  refused(ad_module_update(NULL, &(const double){1}, 1), "module", "NULL");
  ad_module_destroy(NULL);
}

static void programs(void **state) {
  static const char *const some_modules[] = {"m", NULL};
  static const ad_program_kind nameless = {.size = sizeof nameless, .modules = some_modules},
                               empty = {.size = sizeof empty, .name = "empty"};
  static const char *const meshes[] = {"dp=1"}, *const no_mesh[] = {NULL};
  ad_program *program = NULL;
  ad_program_setting setting = {.comm = comm, .meshes = meshes, .global_batch = 1, .microbatches = 1}, wrong = setting;
  ad_mesh *view = NULL;
  refused(ad_key_view(NULL, "ep=1", &view), "ad_key_view", "mesh", "NULL");
  refused(ad_key_view(mesh, NULL, &view), "text", "NULL");
  refused(ad_key_view(mesh, "ep=1", NULL), "out", "NULL");
  assert_null(view);
  refused(ad_program_register(NULL), "kind", "NULL");
  refused(ad_program_load(NULL), "path", "NULL");
  refused(ad_program_register(&nameless), "kind->name", "NULL");
  refused(ad_program_register(&empty), "kind->create", "NULL");
  assert_null(ad_program_kind_find(NULL));
  refused(ad_program_create(NULL, recipe->options, &setting, &program), "kind", "NULL");
  refused(ad_program_create(ad_gpt(), NULL, &setting, &program), "options", "NULL");
  refused(ad_program_create(ad_gpt(), recipe->options, NULL, &program), "setting", "NULL");
  refused(ad_program_create(ad_gpt(), recipe->options, &setting, NULL), "out", "NULL");
  wrong.comm = NULL;
  refused(ad_program_create(ad_gpt(), recipe->options, &wrong, &program), "setting->comm", "NULL");
  wrong = setting, wrong.meshes = NULL;
  refused(ad_program_create(ad_gpt(), recipe->options, &wrong, &program), "setting->meshes", "NULL");
  wrong.meshes = no_mesh;
  refused_call(ad_program_create(ad_gpt(), recipe->options, &wrong, &program), "model", "ad_mesh_create_pool", "text",
               "NULL");
  must(ad_program_create(ad_gpt(), recipe->options, &setting, &program));
  refused(ad_program_add_module(NULL, &(ad_module_spec){.size = sizeof(ad_module_spec)}), "to", "NULL");
  refused(ad_program_add_module(program, NULL), "spec", "NULL");
  refused(ad_program_add_module(program, &(ad_module_spec){.size = sizeof(ad_module_spec), .mesh = mesh}), "spec->name",
          "NULL");
  refused(ad_program_add_module(program, &(ad_module_spec){.size = sizeof(ad_module_spec), .name = "m"}), "spec->mesh",
          "NULL");
  refused(ad_program_add_module(
              program, &(ad_module_spec){.size = sizeof(ad_module_spec), .name = "m", .mesh = mesh, .param_count = 1}),
          "spec->params", "NULL");
  refused(ad_program_add_module(
              program, &(ad_module_spec){.size = sizeof(ad_module_spec), .name = "m", .mesh = mesh, .state_count = 1}),
          "spec->states", "NULL");
  refused(ad_program_add_count(NULL, &(ad_count_spec){.size = sizeof(ad_count_spec)}), "to", "NULL");
  refused(ad_program_add_count(program, NULL), "spec", "NULL");
  refused(ad_program_add_count(program, &(ad_count_spec){.size = sizeof(ad_count_spec), .layout = layout}),
          "spec->name", "NULL");
  refused(ad_program_add_count(program, &(ad_count_spec){.size = sizeof(ad_count_spec), .name = "c"}),
          "spec->layout.mesh", "NULL");
  refused(ad_program_add_loss(NULL, &(ad_loss_spec){.size = sizeof(ad_loss_spec)}), "to", "NULL");
  refused(ad_program_add_loss(program, NULL), "spec", "NULL");
  refused(ad_program_add_loss(program, &(ad_loss_spec){.size = sizeof(ad_loss_spec)}), "spec->name", "NULL");
  refused(ad_program_add_phase(NULL, &(ad_phase){.size = sizeof(ad_phase)}), "to", "NULL");
  refused(ad_program_add_phase(program, NULL), "phase", "NULL");
  refused(ad_program_add_phase(program, &(ad_phase){.size = sizeof(ad_phase)}), "phase->name", "NULL");
  refused_call(ad_program_add_phase(program, &(ad_phase){.size = sizeof(ad_phase), .name = "p"}), "p", "0", "1");
  /* the refused calls added nothing */
  assert_int_equal(ad_program_module_count(program) + ad_program_loss_count(program), 2);
  ad_program_destroy(program);
  ad_program_destroy(NULL);
}

static void ignore(void *context, size_t param, const ad_array *addend) { (*(int *)context)++; }

static void runs(void **state) {
  ad_run *run = NULL;
  ad_step_report report;
  ad_run_memory memory;
  ad_evaluation evaluation;
  double loss;
  size_t bytes;
  int64_t steps;
  int seen = 0;
  refused(ad_run_create(NULL, recipe, NULL, &run), "comm", "NULL");
  refused(ad_run_create(comm, NULL, NULL, &run), "recipe", "NULL");
  refused(ad_run_create(comm, recipe, NULL, NULL), "out", "NULL");
  refused(ad_run_step(NULL, 0, &report), "run", "NULL");
  refused(ad_run_loss(NULL, 0, AD_TRAINED_ON, &loss), "run", "NULL");
  refused(ad_run_refresh(NULL, AD_VALUES_WRITTEN), "run", "NULL");
  refused(ad_run_addends(NULL, 0, 0, ignore, &seen, NULL), "run", "NULL");
  refused(ad_run_measure_memory(NULL, &memory), "run", "NULL");
  refused(ad_run_save(NULL, NULL, 0), "run", "NULL");
  refused(ad_run_checkpoint_bytes(NULL, &bytes), "run", "NULL");
  refused(ad_run_load(NULL, "x", &steps), "run", "NULL");
  refused(ad_run_write_weights(NULL, "x"), "run", "NULL");
  refused(ad_run_read_weights(NULL, "x"), "run", "NULL");
  must(ad_run_create(comm, recipe, NULL, &run));
  refused(ad_run_step(run, 0, NULL), "out", "NULL");
  refused(ad_run_loss(run, 0, AD_TRAINED_ON, NULL), "out", "NULL");
  refused(ad_run_evaluate(NULL, &evaluation), "run", "NULL");
  refused(ad_run_evaluate(run, NULL), "out", "NULL");
  refused(ad_run_measure_memory(run, NULL), "out", "NULL");
  refused(ad_run_save(run, NULL, 0), "checkpointer", "NULL");
  refused(ad_run_checkpoint_bytes(run, NULL), "out", "NULL");
  refused(ad_run_load(run, NULL, &steps), "folder", "NULL");
  refused(ad_run_load(run, "x", NULL), "steps", "NULL");
  refused(ad_run_write_weights(run, NULL), "path", "NULL");
  refused(ad_run_read_weights(run, NULL), "path", "NULL");
  must(ad_run_step(run, 0, &report)); /* the refused calls changed nothing */
  ad_run_destroy(run);
  ad_run_destroy(NULL);
  refused(ad_train_make_folder(NULL, NULL), "recipe", "NULL");
  refused(ad_train(NULL, recipe, NULL), "comm", "NULL");
  refused(ad_train(comm, NULL, NULL), "recipe", "NULL");
}

static void checks(void **state) {
  int holds;
  char *text = NULL;
  refused(ad_check(NULL, NULL, &holds, &text), "recipe", "NULL");
  refused(ad_check(recipe, NULL, NULL, &text), "holds", "NULL");
  refused(ad_check(recipe, NULL, &holds, NULL), "json", "NULL");
  refused(ad_check_on(NULL, recipe, NULL, &holds, &text), "comm", "NULL");
  refused(ad_check_on(comm, NULL, NULL, &holds, &text), "recipe", "NULL");
  refused(ad_check_on(comm, recipe, NULL, NULL, &text), "holds", "NULL");
  refused(ad_check_on(comm, recipe, NULL, &holds, NULL), "json", "NULL");
  refused(ad_check_table(NULL, AD_PLAIN_TEXT, &text), "json", "NULL");
  refused(ad_check_table("{}", AD_PLAIN_TEXT, NULL), "out", "NULL");
  refused(ad_check_list(NULL, AD_PLAIN_TEXT, &text), "json", "NULL");
  refused(ad_check_list("{}", AD_PLAIN_TEXT, NULL), "out", "NULL");
}

static void constants(void **state) {
  int64_t value;
  refused(ad_header_constant(NULL, &value), "name", "NULL");
  refused(ad_header_constant("AD_F32", NULL), "out", "NULL");
}

/* Sizes whose product is 2^64, which a size_t counts as 0, must not make an array without memory. */
static void shapes_that_mean_nothing(void **state) {
  const ad_shape wrapping = {2, {INT64_C(1) << 32, INT64_C(1) << 32}}, wild = {77, {4}}, identical = {77, {4}};
  ad_array out = array;
  ad_reducer *reducer = NULL;
  ad_safetensors_writer *writer = NULL;
  ad_param_spec spec = {.size = sizeof spec, .name = "w", .shape = wrapping, .layout = layout, .storage = layout};
  char text[64];
  refused_call(ad_array_create(comm, AD_F32, &wrapping, &layout, &out), "ad_array_create");
  refused_call(ad_reducer_create(comm, &spec, 1, NULL, &reducer), "w");
  refused_call(ad_safetensors_create("/nowhere/x", &(ad_safetensor){"x", AD_F32, wrapping, NULL, 0}, 1, NULL, &writer),
               "/nowhere/x", "x");
  refused_call(ad_safetensors_create("/nowhere/x", &(ad_safetensor){"x", AD_F32, wild, NULL, 0}, 1, NULL, &writer),
               "/nowhere/x", "x", "77", "0", "6");
  refused_call(ad_safetensors_create("/nowhere/x", &(ad_safetensor){"x", AD_F32, {1, {-1}}, NULL, 0}, 1, NULL, &writer),
               "/nowhere/x", "x", "dimension 0", "-1");
  assert_string_equal(ad_shape_print(&wild, text, sizeof text), "[77 dimensions]");
  assert_true(ad_shape_equal(&wild, &identical));
}

static void arrays_that_do_not_meet(void **state) {
  ad_array empty = array, odd = array, smaller = array;
  ad_optimizer *optimizer = NULL;
  const ad_array *params[] = {&array}, *grads[] = {&empty};
  ad_array *updated[] = {&array};
  empty.data = NULL;
  odd.dtype = (ad_dtype)77;
  smaller.local.dim[0] = 2;
  refused_call(ad_array_add(&array, &empty), "add");
  refused_call(ad_array_add(&empty, &array), "add");
  refused_call(ad_array_add(&array, &odd), "add", "77");
  must(ad_optimizer_create(params, NULL, 1, NULL, &optimizer));
  refused_call(ad_optimizer_step(optimizer, updated, grads, 1, 1), "AdamW", "gradient 0");
  grads[0] = &smaller;
  refused_call(ad_optimizer_step(optimizer, updated, grads, 1, 1), "AdamW", "gradient 0", "[2]", "[4]");
  grads[0] = NULL;
  updated[0] = &empty;
  refused_call(ad_optimizer_step(optimizer, updated, grads, 1, 1), "AdamW", "parameter 0");
  assert_int_equal(ad_optimizer_steps(optimizer), 0);
  ad_optimizer_destroy(optimizer);
}

static void types_and_numbers_that_mean_nothing(void **state) {
  ad_layout wild = layout, out;
  const ad_layout *operands[] = {&wild};
  ad_rule rule = {.size = sizeof rule, .name = "double", .dims = "a->a"};
  ad_reducer *reducer = NULL;
  ad_store *store = NULL;
  ad_param_spec spec = {.size = sizeof spec, .name = "w", .shape = shape, .layout = layout, .storage = layout};
  int64_t position[AD_AXIS_COUNT] = {0};
  wild.type[AD_TP] = 99;
  assert_int_equal(ad_layout_propagate(&rule, operands, NULL, 1, &out), AD_TYPE);
  assert_says("tp", "1", "0x63");
  operands[0] = &layout;
  rule.linearity = (ad_linearity)9;
  refused_call(ad_layout_propagate(&rule, operands, NULL, 1, &out), "double", "9");
  ad_layout_set(&spec.storage, AD_AXES(AD_TP), AD_P);
  assert_int_equal(ad_reducer_create(comm, &spec, 1, NULL, &reducer), AD_TYPE);
  assert_says("w", "tp");
  spec.storage = layout;
  must(ad_store_create(comm, &spec, 1, NULL, &store));
  refused_call(ad_store_refresh(store, (ad_written)9), "written", "9", "AD_VALUES_WRITTEN", "AD_MASTERS_WRITTEN");
  refused_call(ad_store_begin_pass(store, (ad_pass)9), "9", "AD_FORWARD", "AD_BACKWARD");
  ad_store_destroy(store);
  assert_int_equal(ad_mesh_rank_at(mesh, position), 0);
  position[AD_TP] = 9;
  assert_int_equal(ad_mesh_rank_at(mesh, position), -1);
  assert_says("ad_mesh_rank_at", "9", "1");
  assert_int_equal(ad_mesh_rank_at(mesh, NULL), -1);
  assert_int_equal(ad_group_rank(&group, -1), -1);
  assert_says("-1", "1");
}

static void names_and_files_that_mean_nothing(void **state) {
  ad_safetensors_writer *writer = NULL;
  const char *const keyless[] = {"key", NULL, NULL}, *const files[] = {"/nowhere", NULL};
  ad_safetensor tensor = {"__metadata__", AD_F32, shape, NULL, 0};
  int holds;
  char *json;
  refused_call(ad_safetensors_create("/nowhere/x", &tensor, 1, NULL, &writer), "/nowhere/x", "__metadata__");
  tensor.name = "x";
  refused_call(ad_safetensors_create("/nowhere/x", &tensor, 1, keyless, &writer), "/nowhere/x", "key");
  tensor.dtype = (ad_dtype)99;
  refused_call(ad_safetensors_create("/nowhere/x", &tensor, 1, NULL, &writer), "/nowhere/x", "x", "99");
  refused(ad_diff(files, 2, NULL, &holds, &json), "files[i]", "NULL");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(dtype_and_mesh),
      cmocka_unit_test(layouts),
      cmocka_unit_test(arrays),
      cmocka_unit_test(bridges),
      cmocka_unit_test(experts),
      cmocka_unit_test(reducers_and_counts),
      cmocka_unit_test(stores),
      cmocka_unit_test(tensors),
      cmocka_unit_test(tensors_that_are_missing_stick_to_the_tape),
      cmocka_unit_test(optimizers_and_parameters),
      cmocka_unit_test(data_and_files),
      cmocka_unit_test(checkpoints),
      cmocka_unit_test(recipes_and_plans),
      cmocka_unit_test(modules),
      cmocka_unit_test(programs),
      cmocka_unit_test(runs),
      cmocka_unit_test(checks),
      cmocka_unit_test(constants),
      cmocka_unit_test(shapes_that_mean_nothing),
      cmocka_unit_test(arrays_that_do_not_meet),
      cmocka_unit_test(types_and_numbers_that_mean_nothing),
      cmocka_unit_test(names_and_files_that_mean_nothing),
  };
  return cmocka_run_group_tests(tests, make, unmake);
}
