/* Tests the index that describes a state, number by number, and which numbers in an index are refused: the numbers on
 * each side of every bound are tried. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "array/array.h"
#include "base/error.h"
#include "checkpoint/checkpoint_format.h"
#include "checkpoint/checkpoint_index.h"
#include "says.h"

#define must(call)                                        \
  do {                                                    \
    if ((call) != AD_OK) fail_msg("%s", ad_last_error()); \
  } while (0)

/* Two values of a world of four ranks: `sharded` is cut into parts of 2 and 3 rows, of which each is on two ranks;
 * `one` is the same on all. */
typedef struct world {
  ad_mesh *mesh;
  ad_comm *comm;
  ad_array sharded, one, empty;
  ad_checkpoint_value values[3];
  ad_checkpoint_number numbers[2];
  ad_checkpoint_fact facts[1];
  ad_checkpoint_state state;
} world;

static void make_world(world *w) {
  *w = (world){.numbers = {{"seed", 5}, {"scale", -3}}, .facts = {{"model.kind", "gpt"}}};
  must(ad_mesh_create("dp_replicate=2 dp_shard=2", &w->mesh));
  must(ad_comm_open_dry(0, 4, &w->comm));
  ad_layout rows = ad_layout_all(w->mesh, AD_R), all = rows;
  ad_layout_set(&rows, AD_AXES(AD_DP_SHARD), AD_S(0));
  w->sharded = ad_array_describe(w->comm, AD_F32, &(ad_shape){2, {5, 2}}, &rows);
  w->one = ad_array_describe(w->comm, AD_F64, &(ad_shape){1, {3}}, &all);
  w->empty = ad_array_describe(w->comm, AD_BF16, &(ad_shape){1, {0}}, &all);
  w->values[0] = (ad_checkpoint_value){"value.cut", &w->sharded};
  w->values[1] = (ad_checkpoint_value){"value.one", &w->one};
  w->values[2] = (ad_checkpoint_value){"value.empty", &w->empty};
  w->state = (ad_checkpoint_state){.size = sizeof w->state,
                                   .values = w->values,
                                   .value_count = 3,
                                   .numbers = w->numbers,
                                   .number_count = 2,
                                   .text = "a recipe",
                                   .facts = w->facts,
                                   .fact_count = 1,
                                   .step = 7};
}

static void destroy_world(world *w) {
  ad_comm_close(w->comm);
  ad_mesh_destroy(w->mesh);
}

static json_t *index_of(const world *w) {
  ad_group everyone = ad_mesh_group(w->mesh, AD_AXES_ALL, 0);
  json_t *index;
  must(ad_index_describe(&everyone, &w->state, &index));
  return index;
}

static json_t *parsed(const char *text) {
  json_t *document = json_loads(text, JSON_DECODE_ANY, NULL);
  if (!document) fail_msg("%s", text);
  return document;
}

/* ---- writing ---- */

static void an_index_says_which_part_is_in_which_file(void **state) {
  static const ad_file_sum sums[] = {{100, 0xab}, {200, 0x1234567890abcdef}, {300, 1}, {400, 2}};
  world w;
  make_world(&w);
  json_t *index = index_of(&w);
  must(ad_index_add_sums(index, sums));
  json_t *expected = parsed(
      "{\"format\": \"" AD_CHECKPOINT_FORMAT
      "\", \"step\": 7, \"mesh\": \"dp_replicate=2 dp_shard=2\", \"ranks\": 4,"
      " \"facts\": {\"model.kind\": \"gpt\"}, \"numbers\": {\"seed\": 5, \"scale\": -3}, \"text\": \"a recipe\","
      " \"files\": [{\"name\": \"rank-0.safetensors\", \"member\": 0, \"bytes\": 100, \"xxh64\": \"00000000000000ab\"},"
      " {\"name\": \"rank-1.safetensors\", \"member\": 1, \"bytes\": 200, \"xxh64\": \"1234567890abcdef\"}],"
      " \"values\": {\"value.cut\": {\"dtype\": \"f32\", \"shape\": [5, 2], \"layout\": \"dp_replicate=R dp_shard=S0\","
      " \"pieces\": [{\"file\": 0, \"spans\": [[[0, 2]], [[0, 2]]]}, {\"file\": 1, \"spans\": [[[2, 3]], [[0, 2]]]}]},"
      " \"value.one\": {\"dtype\": \"f64\", \"shape\": [3], \"layout\": \"dp_replicate=R dp_shard=R\","
      " \"pieces\": [{\"file\": 0, \"spans\": [[[0, 3]]]}]},"
      " \"value.empty\": {\"dtype\": \"bf16\", \"shape\": [0], \"layout\": \"dp_replicate=R dp_shard=R\","
      " \"pieces\": []}}}");
  if (!json_equal(index, expected)) fail_msg("%s", json_dumps(index, JSON_COMPACT));
  for (int64_t rank = 0; rank < 4; rank++) {
    assert_int_equal(ad_piece_is_written(&w.sharded, rank), rank < 2);
    assert_int_equal(ad_piece_is_written(&w.one, rank), rank == 0);
    assert_int_equal(ad_piece_is_written(&w.empty, rank), 0);
  }
  json_decref(expected);
  json_decref(index);
  destroy_world(&w);
}

/* ---- reading ---- */

static void a_file_has_a_plain_name_and_a_checksum(void **state) {
  static const struct {
    const char *file;
    int good;
  } cases[] = {{"{\"name\": \"rank-0.safetensors\", \"bytes\": 8, \"xxh64\": \"ff\"}", 1},
               {"{\"name\": \"../rank-0.safetensors\", \"bytes\": 8, \"xxh64\": \"ff\"}", 0},
               {"{\"name\": \".rank-0\", \"bytes\": 8, \"xxh64\": \"ff\"}", 0},
               {"{\"bytes\": 8, \"xxh64\": \"ff\"}", 0},
               {"{\"name\": \"rank-0.safetensors\", \"bytes\": 8}", 0},
               {"{\"name\": \"rank-0.safetensors\", \"bytes\": 8, \"xxh64\": 255}", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    json_t *index = json_pack("{s:[{}, o]}", "files", parsed(cases[i].file));
    const char *name = NULL;
    ad_file_sum sum = {0};
    assert_int_equal(ad_index_file_count(index), 2);
    if (ad_index_file(index, 1, &name, &sum) != (cases[i].good ? AD_OK : AD_IO)) fail_msg("%s", cases[i].file);
    if (cases[i].good) {
      assert_string_equal(name, "rank-0.safetensors");
      assert_true(sum.bytes == 8 && sum.checksum == 255);
    } else {
      assert_says("1");
    }
    assert_int_equal(ad_index_file(index, 2, &name, &sum), AD_IO);
    json_decref(index);
  }
}

/* A piece of a value [5, 2], in an index of two files. */
static void a_piece_lies_in_its_value_and_in_a_file_that_is_listed(void **state) {
  static const struct {
    const char *piece;
    int good;
  } cases[] = {
      {"{\"file\": 0, \"spans\": [[[0, 5]], [[0, 2]]]}", 1},
      {"{\"file\": 1, \"spans\": [[[0, 1], [1, 1], [4, 1]], [[1, 1]]]}", 1},
      {"{\"file\": 1, \"spans\": [[], [[1, 1]]]}", 1},
      {"{\"file\": 2, \"spans\": [[[0, 5]], [[0, 2]]]}", 0},
      {"{\"file\": -1, \"spans\": [[[0, 5]], [[0, 2]]]}", 0},
      {"{\"file\": \"0\", \"spans\": [[[0, 5]], [[0, 2]]]}", 0},
      {"{\"spans\": [[[0, 5]], [[0, 2]]]}", 0},
      {"{\"file\": 0}", 0},
      {"{\"file\": 0, \"spans\": [[[0, 5]]]}", 0},
      {"{\"file\": 0, \"spans\": [[[0, 5]], [[0, 2]], [[0, 1]]]}", 0},
      {"{\"file\": 0, \"spans\": [5, [[0, 2]]]}", 0},
      {"{\"file\": 0, \"spans\": [[[0, 6]], [[0, 2]]]}", 0},
      {"{\"file\": 0, \"spans\": [[[1, 5]], [[0, 2]]]}", 0},
      {"{\"file\": 0, \"spans\": [[[5, 1]], [[0, 2]]]}", 0},
      {"{\"file\": 0, \"spans\": [[[4, 1]], [[1, 1]]]}", 1},
      {"{\"file\": 0, \"spans\": [[[-1, 2]], [[0, 2]]]}", 0},
      {"{\"file\": 0, \"spans\": [[[0, 0]], [[0, 2]]]}", 0},
      {"{\"file\": 0, \"spans\": [[[0, -1]], [[0, 2]]]}", 0},
      {"{\"file\": 0, \"spans\": [[[0, 2], [1, 1]], [[0, 2]]]}", 0},
      {"{\"file\": 0, \"spans\": [[[0, 2], [2, 1]], [[0, 2]]]}", 1},
      {"{\"file\": 0, \"spans\": [[[2, 1], [0, 1]], [[0, 2]]]}", 0},
      {"{\"file\": 0, \"spans\": [[[0, 5]], [[0, 3]]]}", 0},
      {"{\"file\": 0, \"spans\": [[[9223372036854775807, 1]], [[0, 2]]]}", 0},
      {"{\"file\": 0, \"spans\": [[[0, 9223372036854775807]], [[0, 2]]]}", 0},
  };
  json_t *index = parsed("{\"files\": [{}, {}]}");
  ad_shape shape = {2, {5, 2}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    json_t *piece = parsed(cases[i].piece);
    ad_part part;
    size_t file;
    if (ad_index_piece(index, piece, &shape, &part, &file) != (cases[i].good ? AD_OK : AD_IO))
      fail_msg("%s", cases[i].piece);
    if (i == 1) {
      assert_true(file == 1 && part.ndim == 2 && part.count[0] == 3 && part.count[1] == 1);
      assert_true(part.span[0][2].first == 4 && part.span[0][2].count == 1 && part.span[1][0].first == 1);
    }
    json_decref(piece);
  }
  json_decref(index);
}

/* As many spans as a part has room for, and one more. */
static void a_piece_has_no_more_spans_than_a_part(void **state) {
  json_t *index = parsed("{\"files\": [{}]}");
  ad_shape shape = {1, {2 * AD_PART_SPANS + 4}};
  for (int count = AD_PART_SPANS; count <= AD_PART_SPANS + 1; count++) {
    json_t *spans = json_array();
    for (int i = 0; i < count; i++) json_array_append_new(spans, json_pack("[i, i]", 2 * i, 1));
    json_t *piece = json_pack("{s:i, s:[o]}", "file", 0, "spans", spans);
    ad_part part;
    size_t file;
    assert_int_equal(ad_index_piece(index, piece, &shape, &part, &file), count > AD_PART_SPANS ? AD_IO : AD_OK);
    json_decref(piece);
  }
  json_decref(index);
}

static void values_that_do_not_fit_are_named(void **state) {
  static const struct {
    const char *values;
    int some; /* the state may be a part of the checkpoint */
    const char *facts[3];
  } cases[] = {
      {"{\"value.cut\": [5, 2], \"value.one\": [3], \"value.empty\": [0]}", 0, {NULL}},
      {"{\"value.cut\": [5, 2], \"value.one\": [3], \"value.empty\": [0], \"state.more\": []}", 1, {NULL}},
      {"{\"value.cut\": [5, 2], \"value.one\": [3], \"value.empty\": [0], \"state.more\": []}", 0, {"state.more"}},
      {"{\"value.cut\": [5, 2], \"value.empty\": [0]}", 0, {"value.one"}},
      {"{\"value.cut\": [5, 2], \"value.empty\": [0]}", 1, {"value.one"}},
      {"{\"value.cut\": [2, 5], \"value.one\": [3], \"value.empty\": [0]}", 0, {"value.cut", "[5, 2]"}},
      {"{\"value.cut\": [5, 3], \"value.one\": [3], \"value.empty\": [0]}", 0, {"value.cut", "[5, 2]"}},
      {"{\"value.cut\": [10], \"value.one\": [3], \"value.empty\": [0]}", 0, {"value.cut", "[5, 2]"}},
      {"{\"value.cut\": [5, 2], \"value.one\": [3, 1], \"value.empty\": [0]}", 0, {"value.one", "[3]"}},
      {"{\"value.cut\": [5, 2], \"value.one\": [3], \"value.empty\": [1]}", 0, {"value.empty", "[0]"}},
  };
  world w;
  make_world(&w);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    json_t *shapes = parsed(cases[i].values), *values = json_object(), *shape;
    const char *name;
    json_object_foreach(shapes, name, shape) json_object_set_new(values, name, json_pack("{s:O}", "shape", shape));
    json_t *index = json_pack("{s:o}", "values", values);
    w.state.some = cases[i].some;
    ad_status status = ad_index_match(index, &w.state);
    if (status != (*cases[i].facts ? AD_INVALID : AD_OK)) fail_msg("%s", cases[i].values);
    if (status) assert_says_all(cases[i].facts);
    for (size_t v = 0; status && v < 3; v++)  // no other value is named
      assert_int_equal(strstr(ad_last_error(), w.values[v].name) != NULL, !strcmp(w.values[v].name, cases[i].facts[0]));
    json_decref(index);
    json_decref(shapes);
  }
  destroy_world(&w);
}

static int may_be_left_over(void *context, const char *name) { return !strcmp(name, context); }

static void values_that_a_state_does_not_want_may_be_left_over(void **state) {
  char unwanted[] = "state.old";
  world w;
  make_world(&w);
  w.state.value_count = 0;
  w.state.unwanted = may_be_left_over;
  w.state.context = unwanted;
  json_t *index = parsed("{\"values\": {\"state.old\": {\"shape\": [3]}}}");
  must(ad_index_match(index, &w.state));
  json_object_set_new(json_object_get(index, "values"), "state.more", json_object());
  assert_int_equal(ad_index_match(index, &w.state), AD_INVALID);
  assert_says("state.more");
  assert_null(strstr(ad_last_error(), "state.old"));
  w.state.value_count = 1;  // a listed value must be there all the same
  strcpy(unwanted, "value.cut");
  assert_int_equal(ad_index_match(index, &w.state), AD_INVALID);
  assert_says("value.cut");
  json_decref(index);
  destroy_world(&w);
}

static void numbers_are_taken_from_the_index(void **state) {
  world w;
  make_world(&w);
  json_t *index = parsed("{\"step\": 9, \"numbers\": {\"scale\": 4, \"seed\": 6}}");
  must(ad_index_numbers(index, &w.state));
  assert_true(w.state.step == 9 && w.numbers[0].value == 6 && w.numbers[1].value == 4);
  must(ad_index_check_step(index, 9));
  assert_int_equal(ad_index_check_step(index, 8), AD_IO);
  assert_says("9", "8");
  json_object_del(json_object_get(index, "numbers"), "scale");
  assert_int_equal(ad_index_numbers(index, &w.state), AD_INVALID);
  assert_says("scale");
  json_decref(index);
  destroy_world(&w);
}

static ad_status keep_facts(void *context, const ad_checkpoint_fact *facts, size_t count) {
  char *reported = context;
  for (size_t i = 0; i < count; i++) sprintf(strchr(reported, 0), "%s=%s;", facts[i].key, facts[i].value);
  return AD_SYSTEM;
}

/* Facts that are texts are passed to state->judge; other facts are left out. */
static void facts_are_judged_by_the_state(void **state) {
  char reported[128] = "";
  json_t *index = parsed("{\"facts\": {\"a\": \"1\", \"b\": 2, \"c\": \"three\"}}");
  ad_checkpoint_state of = {.size = sizeof of, .judge = keep_facts, .context = reported};
  assert_int_equal(ad_index_judge(index, &of), AD_SYSTEM);
  assert_string_equal(reported, "a=1;c=three;");
  of.judge = NULL;
  must(ad_index_judge(index, &of));
  json_decref(index);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_index_says_which_part_is_in_which_file),
      cmocka_unit_test(a_file_has_a_plain_name_and_a_checksum),
      cmocka_unit_test(a_piece_lies_in_its_value_and_in_a_file_that_is_listed),
      cmocka_unit_test(a_piece_has_no_more_spans_than_a_part),
      cmocka_unit_test(values_that_do_not_fit_are_named),
      cmocka_unit_test(values_that_a_state_does_not_want_may_be_left_over),
      cmocka_unit_test(numbers_are_taken_from_the_index),
      cmocka_unit_test(facts_are_judged_by_the_state),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
