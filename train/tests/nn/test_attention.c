/* Tests which tokens an attention layer lets each token see. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "addend/helpers.h"
#include "addend/layers.h"

#define must(call) assert_int_equal((call), AD_OK)

enum { SEQ = 5, WIDTH = 8, PARAMS_MAX = 8 };

typedef struct world {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_layout layout;
  ad_tape *tape;
} world;

static world world_open(void) {
  world w;
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  must(ad_comm_open_alone(&w.comm));
  must(ad_mesh_create("tp=1", &w.mesh));
  must(ad_layout_parse(w.mesh, "tp=I", &w.layout));
  must(ad_tape_create(w.comm, w.mesh, &options, &w.tape));
  return w;
}

static void world_close(world *w) {
  ad_tape_destroy(w->tape);
  ad_mesh_destroy(w->mesh);
  ad_comm_close(w->comm);
}

static ad_array random_array(const world *w, ad_shape shape, const ad_layout *layout, uint64_t stream) {
  ad_array array = ad_array_describe(w->comm, AD_F64, &shape, layout);
  double *values = malloc(ad_array_bytes(&array));
  assert_non_null(values);
  for (size_t i = 0; i < ad_array_numel(&array); i++) values[i] = ad_random_normal(3, stream, i);
  array.data = values;
  return array;
}

/* Runs the layer on x [1, SEQ, WIDTH]. */
static void attend(world *w, const ad_attention_shape *shape, const ad_array *x, double out[SEQ * WIDTH]) {
  ad_declarations list = ad_declarations_on(w->mesh);
  ad_attention_layer layer = ad_attention_declare(&list, "attn", shape);
  ad_array values[PARAMS_MAX];
  ad_tensor *params[PARAMS_MAX];
  must(list.status);
  assert_in_range(list.count, 1, PARAMS_MAX);
  for (size_t i = 0; i < list.count; i++) {
    values[i] = random_array(w, list.list[i].shape, &list.list[i].layout, i);
    params[i] = ad_constant(w->tape, &values[i]);
  }
  const ad_array *result = ad_tensor_array(ad_attention_forward(w->tape, params, &layer, ad_constant(w->tape, x)));
  must(ad_tape_status(w->tape));
  memcpy(out, result->data, SEQ * WIDTH * sizeof *out);
  ad_tape_reset(w->tape);
  for (size_t i = 0; i < list.count; i++) free(values[i].data);
  ad_declarations_release(&list);
}

/* Whether the first token's result depends on the last token. */
static int first_sees_last(int sees_all) {
  ad_attention_shape shape = {
      .d_model = WIDTH, .heads = 2, .kv_heads = 1, .rotary_base = 100, .output_factor = 1, .sees_all = sees_all};
  double before[SEQ * WIDTH], after[SEQ * WIDTH];
  world w = world_open();
  ad_array x = random_array(&w, (ad_shape){3, {1, SEQ, WIDTH}}, &w.layout, PARAMS_MAX);
  attend(&w, &shape, &x, before);
  ((double *)x.data)[(SEQ - 1) * WIDTH] += 1;
  attend(&w, &shape, &x, after);
  free(x.data);
  world_close(&w);
  assert_memory_not_equal(before + (SEQ - 1) * WIDTH, after + (SEQ - 1) * WIDTH, WIDTH * sizeof *after);
  return memcmp(before, after, WIDTH * sizeof *after) != 0;
}

static void a_token_sees_later_ones_only_where_all_are_seen(void **state) {
  assert_false(first_sees_last(0));
  assert_true(first_sees_last(1));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_token_sees_later_ones_only_where_all_are_seen),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
