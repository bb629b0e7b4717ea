/* Tests batches that a program reads row by row: which samples come where, what is counted, and how plans and dumps
 * show them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "program/program.h"
#include "says.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

enum { BATCH = 7, MICROBATCHES = 2, EVALUATED = 5, LABELS = 1 };

typedef struct table {
  ad_batch *batch;
  /* samples from first_uncounted on do not count; last: number of the last sample that was read */
  int64_t first_uncounted, last;
  size_t read;
  ad_data_split validation; /* which part the last sample was read from */
} table;

static const ad_batch_field fields[] = {{"numbers", AD_F64, {2, {2, 3}}}, {"labels", AD_I32, {0}}};

static ad_status run_nothing(void *own, ad_phase_run *at) { return AD_OK; }

static ad_status create(const void *options, ad_program *to, void **out) {
  table *o = calloc(1, sizeof *o);
  ad_declarations list = ad_declarations_on(ad_program_mesh(to, 0));
  ad_layout rows = list.replicated, counted = rows;
  *out = o;
  o->first_uncounted = 1000;
  ad_layout_set(&rows, AD_AXES_DP, AD_S(0));
  ad_layout_set(&counted, AD_AXES_DP, AD_P);
  AD_TRY(ad_program_add_declared(to, "model", NULL, &list));
  AD_TRY(ad_program_add_batch(to, &rows, fields, 2, &o->batch));
  AD_TRY(ad_program_add_count(to, &(ad_count_spec){sizeof(ad_count_spec), "rows", counted}));
  AD_TRY(ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "loss"}));
  return ad_program_add_phase(to, &(ad_phase){.size = sizeof(ad_phase), .name = "model", .run = run_nothing});
}

static ad_status read_row(void *context, ad_batch_row *row) {
  table *o = context;
  for (size_t i = 0; i < 6; i++) ad_array_set(&row->fields[0], row->row * 6 + i, (double)row->sample + (double)i / 10);
  ad_array_set(&row->fields[1], row->row, row->counts);
  if (row->sample >= o->first_uncounted) row->counts = 0;
  o->last = row->sample;
  o->validation = row->validation;
  o->read++;
  return AD_OK;
}

static ad_status read_batch(void *context, int64_t step, ad_data_split validation, int64_t *const *counted) {
  ad_row_reader reader = {read_row, context};
  return ad_batch_read(((table *)context)->batch, step, validation, &reader, counted[0]);
}

static const ad_program_kind kind = {
    .size = sizeof kind, .name = "rows", .options_size = 1, .create = create, .read = read_batch};

static ad_program *made_on(ad_comm *comm, const char *mesh) {
  static const char options;
  ad_program *program;
  ad_program_setting setting = {.comm = comm,
                                .meshes = (const char *const[]){mesh},
                                .global_batch = BATCH,
                                .microbatches = MICROBATCHES,
                                .evaluated = EVALUATED,
                                .compute = AD_F64};
  must(ad_program_create(&kind, &options, &setting, &program));
  return program;
}

static void samples_are_numbered_through_microbatches_and_steps(void **state) {
  ad_comm *comm;
  int64_t counts[MICROBATCHES] = {0}, *counted[] = {counts};
  must(ad_comm_open_alone(&comm));
  ad_program *program = made_on(comm, "dp=1");
  table *o = program->own;
  must(kind.read(o, 3, AD_TRAINED_ON, counted));
  assert_int_equal(counts[0], 3);
  assert_int_equal(counts[1], 4);
  for (int64_t m = 0, sample = 3 * BATCH; m < MICROBATCHES; m++) {
    const ad_array *numbers = ad_batch_array(o->batch, 0, (size_t)m), *labels = ad_batch_array(o->batch, 1, (size_t)m);
    assert_int_equal(ad_array_numel(numbers), 6 * counts[m]);
    for (int64_t row = 0; row < counts[m]; row++, sample++) {
      assert_true(ad_array_get(numbers, (size_t)row * 6 + 5) == (double)sample + 0.5);
      assert_true(ad_array_get(labels, (size_t)row) == 1);
    }
  }
  o->first_uncounted = 3 * BATCH + 5;
  must(kind.read(o, 3, AD_TRAINED_ON, counted));
  assert_int_equal(counts[0], 3);
  assert_int_equal(counts[1], 2);
  ad_program_destroy(program);
  ad_comm_close(comm);
}

static void after_the_validation_sets_last_one_nothing_counts(void **state) {
  ad_comm *comm;
  int64_t counts[MICROBATCHES] = {0}, *counted[] = {counts};
  must(ad_comm_open_alone(&comm));
  ad_program *program = made_on(comm, "dp=1");
  table *o = program->own;
  must(kind.read(o, 0, AD_VALIDATION_SET, counted));
  assert_int_equal(counts[0] + counts[1], EVALUATED);
  assert_true(ad_array_get(ad_batch_array(o->batch, LABELS, 1), 1) == 1); /* row 1 is sample 4 */
  assert_true(ad_array_get(ad_batch_array(o->batch, LABELS, 1), 2) == 0); /* row 2 is sample 5 */
  assert_int_equal(o->last, BATCH - 1);
  assert_int_equal(o->validation, AD_VALIDATION_SET);
  must(kind.read(o, 0, AD_VALIDATION_DRAWN, counted));
  assert_int_equal(counts[0] + counts[1], BATCH);
  ad_program_destroy(program);
  ad_comm_close(comm);
}

static void a_rank_has_its_rows_and_on_paper_none_is_read(void **state) {
  ad_comm *comm;
  int64_t counts[MICROBATCHES] = {0}, *counted[] = {counts};
  must(ad_comm_open_dry(2, 3, &comm));
  ad_program *program = made_on(comm, "dp=3");
  table *o = program->own;
  must(kind.read(o, 0, AD_TRAINED_ON, counted));
  assert_int_equal(o->read, 0);
  assert_int_equal(counts[0], 1); /* one of 3 samples, sharded over three ranks */
  assert_int_equal(counts[1], 2); /* 2 of 4 samples */
  assert_int_equal(ad_batch_array(o->batch, 0, 1)->local.dim[0], 2);
  ad_comm_close(comm); /* a program on backend dry does not use the comm any more */
  ad_program_destroy(program);
}

static void plans_and_dumps_have_its_arrays(void **state) {
  ad_comm *comm;
  char name[64];
  must(ad_comm_open_alone(&comm));
  ad_program *program = made_on(comm, "dp=1");
  assert_int_equal(ad_program_data_bytes(program), BATCH * (6 * sizeof(double) + sizeof(int32_t)));
  assert_non_null(ad_program_batch_array(program, 3, name, sizeof name));
  assert_string_equal(name, "microbatch.1.labels");
  assert_non_null(ad_program_batch_array(program, 0, NULL, 0));
  assert_null(ad_program_batch_array(program, 4, name, sizeof name));
  assert_null(ad_program_constant_array(program, 0, name, sizeof name));
  ad_program_destroy(program);
  ad_comm_close(comm);
}

static void what_is_no_batch_is_refused(void **state) {
  static const ad_batch_field deep = {"deep", AD_F32, {AD_DIMS_MAX, {1, 1, 1, 1, 1, 1}}};
  ad_comm *comm;
  ad_batch *second;
  must(ad_comm_open_alone(&comm));
  ad_program *program = made_on(comm, "dp=1");
  ad_layout rows = ad_layout_all(ad_program_mesh(program, 0), AD_R);
  assert_int_equal(ad_program_add_batch(program, &rows, fields, 2, &second), AD_INVALID);
  assert_listed();
  assert_null(ad_batch_array(program->batch, 2, 0));
  assert_null(ad_batch_array(program->batch, 0, MICROBATCHES));
  ad_batch_destroy(program->batch);
  program->batch = NULL;
  static const ad_batch_field twice[] = {{"x", AD_F32, {0}}, {"x", AD_I32, {0}}}, nameless = {NULL, AD_F32, {0}};
  assert_int_equal(ad_program_add_batch(program, &rows, fields, 0, &second), AD_INVALID);
  assert_listed();
  assert_int_equal(ad_program_add_batch(program, &rows, twice, 2, &second), AD_INVALID);
  assert_says("x");
  assert_int_equal(ad_program_add_batch(program, &rows, &nameless, 1, &second), AD_INVALID);
  assert_listed();
  assert_int_equal(ad_program_add_batch(program, &rows, &deep, 1, &second), AD_INVALID);
  assert_says("6", "5");
  ad_program_destroy(program);
  ad_comm_close(comm);
}

static void what_was_read_last_is_known_to_phases(void **state) {
  ad_comm *comm;
  int64_t counts[MICROBATCHES] = {0}, *counted[] = {counts};
  must(ad_comm_open_alone(&comm));
  ad_program *program = made_on(comm, "dp=1");
  const table *o = program->own;
  must(kind.read(program->own, 3, AD_TRAINED_ON, counted));
  assert_int_equal(ad_batch_step(o->batch), 3);
  assert_int_equal(ad_batch_split(o->batch), AD_TRAINED_ON);
  must(kind.read(program->own, 1, AD_VALIDATION_SET, counted));
  assert_int_equal(ad_batch_step(o->batch), 1);
  assert_int_equal(ad_batch_split(o->batch), AD_VALIDATION_SET);
  assert_int_equal(ad_batch_first(o->batch, 0), 0);
  assert_int_equal(ad_batch_first(o->batch, 1), 3); /* 7 samples in two microbatches: the first has 3 */
  assert_int_equal(ad_batch_first(o->batch, MICROBATCHES), -1);
  ad_program_destroy(program);
  ad_comm_close(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_was_read_last_is_known_to_phases),
      cmocka_unit_test(samples_are_numbered_through_microbatches_and_steps),
      cmocka_unit_test(after_the_validation_sets_last_one_nothing_counts),
      cmocka_unit_test(a_rank_has_its_rows_and_on_paper_none_is_read),
      cmocka_unit_test(plans_and_dumps_have_its_arrays),
      cmocka_unit_test(what_is_no_batch_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
