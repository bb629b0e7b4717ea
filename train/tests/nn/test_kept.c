/* Tests which inputs attention takes to continue the tokens whose keys it keeps, and how the others are refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include "nn/kept.h"
#include "says.h"
#include "tensor/tape.h"

#define must(call) assert_int_equal((call), AD_OK)

enum { ROWS = 4, COLUMNS = 6, KEPT = 3 };

/* An input of so many sequences, with this layout on four ranks; `says`: the numbers of the refusal, in its order. */
typedef struct input {
  int64_t sequences, position;
  const char *layout;
  const char *says[6]; /* none: it is taken */
} input;

static void try(ad_comm *comm, const ad_mesh *mesh, const input *of) {
  static float zeros[2 * ROWS * COLUMNS];
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F32};
  ad_shape shape = {3, {of->sequences, ROWS, COLUMNS}};
  ad_kept_rows rows = {.count = KEPT};
  ad_layout layout;
  ad_tape *tape;
  must(ad_tape_create(comm, mesh, &options, &tape));
  must(ad_layout_parse(mesh, of->layout, &layout));
  ad_array array = ad_array_describe(comm, AD_F32, &shape, &layout);
  array.data = zeros;
  ad_tape_continue(tape, of->position);
  ad_kept_rows_add(tape, &rows, ad_constant(tape, &array));
  assert_int_equal(ad_tape_status(tape), of->says[0] ? AD_INVALID : AD_OK);
  if (of->says[0]) assert_says_all(of->says);
  assert_int_equal(rows.count, of->says[0] ? KEPT : KEPT + ROWS);
  free(rows.data);
  ad_tape_destroy(tape);
}

static void keys_are_kept_of_one_whole_sequence_that_continues(void **state) {
  static const input inputs[] = {{1, KEPT, "dp_shard=R cp=R tp=I", {NULL}},
                                 {2, KEPT, "dp_shard=R cp=R tp=I", {"2", "4", "4", "6", "6"}},
                                 {2, KEPT, "dp_shard=S0 cp=R tp=I", {"2", "4", "4", "6", "6"}},
                                 {1, KEPT, "dp_shard=R cp=S1 tp=I", {"1", "2", "4", "6", "6"}},
                                 {1, KEPT, "dp_shard=R cp=R tp=S2", {"1", "4", "4", "3", "6"}},
                                 {1, KEPT - 1, "dp_shard=R cp=R tp=I", {"2", "3"}},
                                 {1, KEPT + 1, "dp_shard=R cp=R tp=I", {"4", "3"}}};
  ad_comm *comm;
  ad_mesh *mesh;
  must(ad_comm_open_dry(0, 8, &comm));
  must(ad_mesh_create("dp_shard=2 cp=2 tp=2", &mesh));
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) try(comm, mesh, &inputs[i]);
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
}

/* Row by row, as sampling adds them: all rows are there, in order, and room for at most as many again. */
static void kept_rows_grow_with_their_number(void **state) {
  enum { TOKENS = 60 };
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F32};
  ad_shape shape = {3, {1, 1, COLUMNS}};
  ad_kept_rows rows = {0};
  ad_comm *comm;
  ad_mesh *mesh;
  ad_tape *tape;
  must(ad_comm_open_alone(&comm));
  must(ad_mesh_create("tp=1", &mesh));
  must(ad_tape_create(comm, mesh, &options, &tape));
  for (int64_t token = 0; token < TOKENS; token++) {
    float own[COLUMNS];
    ad_layout layout = ad_layout_all(mesh, AD_I);
    ad_array array = ad_array_describe(comm, AD_F32, &shape, &layout);
    for (int i = 0; i < COLUMNS; i++) own[i] = (float)(token * COLUMNS + i);
    array.data = own;
    ad_tape_continue(tape, token);
    const ad_array *all = ad_tensor_array(ad_kept_rows_add(tape, &rows, ad_constant(tape, &array)));
    must(ad_tape_status(tape));
    assert_true(all->shape.dim[1] == token + 1 && all->local.dim[1] == token + 1 && all->shape.dim[2] == COLUMNS);
    for (int64_t i = 0; i < (token + 1) * COLUMNS; i++) assert_true(((const float *)all->data)[i] == (float)i);
    assert_int_equal(rows.count, token + 1);
    assert_int_equal(rows.bytes, (size_t)(token + 1) * sizeof own);
    assert_in_range(rows.room, rows.bytes, 2 * rows.bytes);
    ad_tape_reset(tape);
  }
  free(rows.data);
  ad_tape_destroy(tape);
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(keys_are_kept_of_one_whole_sequence_that_continues),
                                     cmocka_unit_test(kept_rows_grow_with_their_number)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
