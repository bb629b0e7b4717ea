/* Tests law 2 and law 4: the table of transitions, the layout after each, the path of a gradient to its storage layout;
 * and changing view (another factorisation of the same ranks). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include "addend/layout.h"
#include "layout/transition.h"
#include "says.h"
#include "layout/type.h"

static ad_mesh *mesh;

static int make_mesh(void **state) { return ad_mesh_create("dp_replicate=2 dp_shard=3 cp=1 tp=2", &mesh); }
static int drop_mesh(void **state) {
  ad_mesh_destroy(mesh);
  return 0;
}

static ad_layout read_layout(const char *text) {
  ad_layout layout;
  assert_int_equal(ad_layout_parse(mesh, text, &layout), AD_OK);
  return layout;
}

static const ad_type kinds[] = {AD_R, AD_I, AD_V, AD_P, AD_S(0)};
enum { KIND_COUNT = 5 };

static void the_table_is_the_one_of_the_design(void **state) {
  static const char *const lines[] = {
      "all_reduce P->R 1 all_reduce P->R",
      "all_reduce P->I 1 convert I->R",
      "reduce_scatter P->S(0) 1 all_gather S(0)->R",
      "all_gather S(0)->R 1 reduce_scatter P->S(0)",
      "all_gather S(0)->I 1 convert I->S(0)",
      "all_to_all S(0)->S(0) 1 all_to_all S(0)->S(0)",
      "all_to_all V->V 1 all_to_all V->V",
      "convert I->R 0 all_reduce P->I",
      "convert R->S(0) 0 convert S(0)->P",
      "convert I->S(0) 0 all_gather S(0)->I",
      "convert S(0)->P 0 convert R->S(0)",
      "once R->P 0 once R->P",
      "declare V->P 0 declare R->V",
      "declare R->V 0 declare V->P",
      "declare V->S(0) 0 declare S(0)->V",
      "declare S(0)->V 0 declare V->S(0)",
  };
  size_t count;
  const ad_transition *table = ad_transition_table(&count);
  assert_int_equal(count, sizeof lines / sizeof lines[0]);
  for (size_t i = 0; i < count; i++) {
    char line[96], type[4][16];
    snprintf(line, sizeof line, "%s %s->%s %d %s %s->%s", ad_move_name(table[i].move),
             ad_type_print(table[i].from, type[0], 16), ad_type_print(table[i].to, type[1], 16), table[i].moves_bytes,
             ad_move_name(table[i].backward), ad_type_print(table[i].backward_from, type[2], 16),
             ad_type_print(table[i].backward_to, type[3], 16));
    assert_string_equal(line, lines[i]);
  }
}

static void a_backward_goes_between_the_duals_and_back_again(void **state) {
  size_t count;
  const ad_transition *table = ad_transition_table(&count);
  for (size_t i = 0; i < count; i++) {
    assert_int_equal(table[i].backward_from, ad_type_dual(table[i].to));
    assert_int_equal(table[i].backward_to, ad_type_dual(table[i].from));
    const ad_transition *back = ad_transition_find(table[i].backward, table[i].backward_from, table[i].backward_to);
    assert_non_null(back);
    assert_ptr_equal(ad_transition_find(back->backward, back->backward_from, back->backward_to), &table[i]);
  }
}

static int in_table(ad_move move, ad_type from, ad_type to) {
  size_t count;
  const ad_transition *table = ad_transition_table(&count);
  for (size_t i = 0; i < count; i++)
    if (table[i].move == move && table[i].from == from && table[i].to == to) return 1;
  return 0;
}

/* Tries every transition between every two kinds of types, on an axis of size 2 and on one of size 1. */
static void what_is_not_in_the_table_is_refused(void **state) {
  static const ad_axis axes[] = {AD_TP, AD_CP};
  for (int move = 0; move < AD_MOVE_COUNT; move++)
    for (int i = 0; i < KIND_COUNT; i++)
      for (int j = 0; j < KIND_COUNT; j++)
        for (int k = 0; k < 2; k++) {
          ad_type to = ad_type_is_sharded(kinds[j]) ? AD_S(1) : kinds[j];
          ad_layout layout = ad_layout_all(mesh, AD_R), after = ad_layout_all(mesh, AD_V);
          ad_layout_set(&layout, AD_AXES(axes[k]), kinds[i]);
          ad_status status = ad_layout_after_at(&layout, (ad_move)move, AD_AXES(axes[k]), to, 2, &after, "here.c:1");
          assert_int_equal(status, in_table((ad_move)move, kinds[i], kinds[j]) ? AD_OK : AD_TYPE);
          if (status) {
            assert_int_equal(ad_layout_axes_of(&after, AD_V), AD_AXES_ALL);
            assert_facts(ad_last_error(), "here.c:1", k ? "cp" : "tp");
          } else {
            ad_layout_set(&layout, AD_AXES(axes[k]), to);
            assert_true(ad_layout_equal(&layout, &after));
          }
        }
}

/* A message proposes a way from one type to another: each of its steps is in the table, and the last type is the wanted
 * one. */
static void there_is_a_way_between_any_two_types(void **state) {
  for (int i = 0; i < KIND_COUNT; i++)
    for (int j = 0; j < KIND_COUNT; j++) {
      ad_way way = ad_way_find(kinds[i], kinds[j]);
      if (i == j) continue;
      assert_in_range(way.count, 1, AD_WAY_MAX);
      assert_int_equal(way.from[0], kinds[i]);
      assert_int_equal(way.to[way.count - 1], kinds[j]);
      for (int k = 0; k < way.count; k++) {
        assert_true(in_table(way.move[k], way.from[k], way.to[k]));
        if (k) assert_int_equal(way.from[k], way.to[k - 1]);
      }
    }
}

typedef struct step_case {
  const char *before;
  ad_move move;
  ad_axes axes;
  ad_type to;
  const char *after; /* the layout after the transition; NULL if it is refused */
  const char *facts[6];
} step_case;

static void check_steps(const step_case *cases, size_t count, ad_status wanted) {
  for (size_t i = 0; i < count; i++) {
    ad_layout before = read_layout(cases[i].before), after;
    assert_int_equal(ad_layout_after_at(&before, cases[i].move, cases[i].axes, cases[i].to, 3, &after, "x.c:9"),
                     wanted);
    if (wanted) {
      assert_says_all(cases[i].facts);
      continue;
    }
    ad_layout expected = read_layout(cases[i].after);
    assert_true(ad_layout_equal(&after, &expected));
  }
}

static void shardings_are_made_and_undone_innermost(void **state) {
  static const step_case cases[] = {
      {"dp=S0 tp=S0", AD_MOVE_ALL_GATHER, AD_AXES(AD_TP), AD_R, "dp=S0 tp=R", {NULL}},
      {"tp=S0 dp=S0", AD_MOVE_ALL_GATHER, AD_AXES_DP, AD_R, "tp=S0 dp=R", {NULL}},
      {"tp=S0 dp=S0", AD_MOVE_ALL_GATHER, AD_AXES_DP | AD_AXES(AD_TP), AD_I, "dp=I tp=I", {NULL}},
      {"dp=S0 tp=S1", AD_MOVE_ALL_GATHER, AD_AXES_DP | AD_AXES(AD_TP), AD_R, "dp=R tp=R", {NULL}},
      {"dp=S0 tp=S1", AD_MOVE_ALL_TO_ALL, AD_AXES(AD_TP), AD_S(0), "dp=S0 tp=S0", {NULL}},
      {"dp=P tp=S0", AD_MOVE_REDUCE_SCATTER, AD_AXES_DP, AD_S(0), "tp=S0 dp_replicate=S0 dp_shard=S0", {NULL}},
      {"dp=R tp=S0", AD_MOVE_CONVERT, AD_AXES(AD_DP_SHARD), AD_S(0), "dp_replicate=R tp=S0 dp_shard=S0", {NULL}},
      {"dp=S0 tp=S0", AD_MOVE_DECLARE, AD_AXES_DP | AD_AXES(AD_TP), AD_V, "dp=V tp=V", {NULL}},
      {"dp=S0 tp=S0z", AD_MOVE_ALL_TO_ALL, AD_AXES(AD_TP), AD_S(0), "dp=S0 tp=S0", {NULL}},
      {"dp=R tp=R", AD_MOVE_ONCE, 0, AD_P, "dp=R tp=R", {NULL}},
  };
  static const step_case wrong[] = {
      {"tp=S0 dp=S0",
       AD_MOVE_ALL_GATHER,
       AD_AXES(AD_TP),
       AD_R,
       NULL,
       {"tp", "dp_replicate", "x.c:9", "all_gather", "S(0)"}},
      {"dp=S0 tp=R", AD_MOVE_ALL_GATHER, AD_AXES(AD_DP_REPLICATE), AD_R, NULL, {"dp_shard"}},
      {"tp=S0 dp=S0", AD_MOVE_ALL_TO_ALL, AD_AXES(AD_TP), AD_S(1), NULL, {"all_to_all", "tp", "dp_replicate", "S(0)"}},
      {"dp=R tp=S1", AD_MOVE_ALL_TO_ALL, AD_AXES(AD_TP), AD_S(1), NULL, {"tp", "S(1)", "all_to_all"}},
      {"dp=R tp=R", AD_MOVE_ALL_REDUCE, AD_AXES(AD_TP), AD_R, NULL, {"tp", "R", "all_reduce"}},
      {"dp=R tp=P", AD_MOVE_ALL_GATHER, AD_AXES(AD_TP), AD_R, NULL, {"tp", "all_gather", "all_reduce", "P->R"}},
      {"dp=R tp=I", AD_MOVE_ONCE, AD_AXES(AD_TP), AD_P, NULL, {"tp", "I->R", "R->P"}},
      {"dp=P tp=R", AD_MOVE_ALL_REDUCE, AD_AXES_DP | AD_AXES(AD_TP), AD_I, NULL, {"tp", "R"}},
      {"dp=P tp=R", AD_MOVE_REDUCE_SCATTER, AD_AXES_DP, AD_S(3), NULL, {"S(3)", "3 dimensions"}},
  };
  check_steps(cases, sizeof cases / sizeof cases[0], AD_OK);
  check_steps(wrong, sizeof wrong / sizeof wrong[0], AD_TYPE);
}

static void a_move_that_does_not_exist_is_refused(void **state) {
  ad_layout layout = ad_layout_all(mesh, AD_R), after;
  assert_int_equal(ad_layout_after_at(&layout, AD_MOVE_COUNT, 0, AD_R, 1, &after, NULL), AD_INVALID);
  assert_int_equal(ad_layout_after_at(&layout, AD_MOVE_ONCE, AD_AXES_ALL + 1, AD_P, 1, &after, NULL), AD_INVALID);
  assert_int_equal(ad_layout_after_at(&layout, AD_MOVE_ONCE, 0, 0x77, 1, &after, NULL), AD_INVALID);
}

static const char *print_path(const char *gradient, const char *storage, char *buffer, size_t size) {
  ad_layout from = read_layout(gradient), to = read_layout(storage);
  ad_path_step steps[AD_AXIS_COUNT];
  int count, used = 0;
  char axes[64], type[16];
  buffer[0] = 0;
  if (ad_layout_path(&from, &to, steps, &count)) return NULL;
  for (int i = 0; i < count; i++)
    used += snprintf(buffer + used, size - (size_t)used, "%s%s %s %s", i ? "; " : "", ad_move_name(steps[i].move),
                     ad_axes_print(steps[i].axes, axes, sizeof axes), ad_type_print(steps[i].to, type, sizeof type));
  return buffer;
}

static void the_path_of_a_gradient_follows_from_its_types(void **state) {
  static const char *const cases[][3] = {
      {"dp=P tp=S1", "dp=R tp=S1", "all_reduce dp_replicate,dp_shard R"},
      {"dp=P tp=P", "dp=R tp=R", "all_reduce dp_replicate,dp_shard,tp R"},
      {"dp=P tp=S1", "dp_replicate=R dp_shard=S0 tp=S1", "reduce_scatter dp_shard S(0); all_reduce dp_replicate R"},
      {"dp=P tp=I", "dp=S0 tp=I", "reduce_scatter dp_replicate,dp_shard S(0)"},
      {"dp=P tp=S0", "tp=S0 dp_shard=S0 dp_replicate=R", "reduce_scatter dp_shard S(0); all_reduce dp_replicate R"},
      {"dp=P tp=P", "dp=R tp=I", "all_reduce dp_replicate,dp_shard R; all_reduce tp I"},
      {"dp=P tp=R", "dp_shard=S0 dp_replicate=S0 tp=R",
       "reduce_scatter dp_shard S(0); reduce_scatter dp_replicate S(0)"},
      {"dp_replicate=P dp_shard=R tp=S1", "dp_replicate=R dp_shard=S0 tp=S1",
       "convert dp_shard S(0); all_reduce dp_replicate R"},
      {"dp_replicate=P dp_shard=S0 tp=S1", "dp_replicate=R dp_shard=S0 tp=S1", "all_reduce dp_replicate R"},
      {"dp=R tp=V", "dp=R tp=V", ""},
      {"dp=P cp=P tp=I", "dp=R cp=R tp=I", "all_reduce dp_replicate,dp_shard,cp R"},
  };
  char text[256];
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    assert_string_equal(print_path(cases[i][0], cases[i][1], text, sizeof text), cases[i][2]);
}

static void a_gradient_without_a_path_is_refused(void **state) {
  static const struct {
    const char *gradient, *storage, *facts[4];
  } cases[] = {
      {"dp=V tp=R", "dp=R tp=R", {"dp_replicate", "V", "R"}},
      {"dp=R tp=R", "dp=P tp=R", {"dp_replicate", "R", "P"}},
      {"dp=P tp=S1", "dp=R tp=S0", {"tp", "S(1)", "S(0)"}},
      {"dp=P tp=S1", "dp=R tp=R", {"tp", "S(1)", "R"}},
      {"dp=P tp=S0",
       "dp_shard=S0 tp=S0 dp_replicate=R",
       {"dp_replicate=R tp=S0 cp=R dp_shard=S0", "dp_replicate=R dp_shard=S0 cp=R tp=S0"}},
  };
  char text[256];
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_null(print_path(cases[i].gradient, cases[i].storage, text, sizeof text));
    assert_says_all(cases[i].facts);
  }
}

static void an_axis_that_is_missing_in_the_mesh_takes_no_step(void **state) {
  ad_layout param = read_layout("dp=R tp=S1"), gradient = ad_layout_dual(&param);
  ad_path_step steps[AD_AXIS_COUNT];
  int count;
  assert_int_equal(gradient.type[AD_PP], AD_P);
  assert_int_equal(ad_layout_path(&gradient, &param, steps, &count), AD_OK);
  assert_int_equal(count, 1);
  assert_int_equal(steps[0].axes, AD_AXES_DP | AD_AXES(AD_CP));
}

/* Each step of a path is a legal transition, and the last layout is the storage layout. */
static void a_path_is_legal_step_by_step(void **state) {
  static const ad_type finals[] = {AD_R, AD_I, AD_P, AD_S(0), AD_S(1)};
  int paths = 0;
  for (int code = 0; code < 5 * 5 * 5 * 5 * 5 * 5; code++) {
    static const ad_axis axes[] = {AD_DP_REPLICATE, AD_DP_SHARD, AD_TP};
    ad_layout reached = ad_layout_all(mesh, AD_R), storage = reached;
    for (int k = 0, digits = code; k < 3; k++, digits /= 25) {
      ad_layout_set(&reached, AD_AXES(axes[k]), finals[digits % 5]);
      ad_layout_set(&storage, AD_AXES(axes[2 - k]), finals[digits / 5 % 5]);
    }
    ad_path_step steps[AD_AXIS_COUNT];
    int count;
    if (ad_layout_path(&reached, &storage, steps, &count)) continue;
    for (int i = 0; i < count; i++)
      assert_int_equal(ad_layout_after_at(&reached, steps[i].move, steps[i].axes, steps[i].to, 2, &reached, NULL),
                       AD_OK);
    assert_true(ad_layout_equal(&reached, &storage));
    paths++;
  }
  assert_true(paths > 1000);
}

static void views_keep_what_is_uniform(void **state) {
  static const char *const cases[][4] = {
      {"dp=4 cp=1 tp=2", "dp_shard=V cp=R tp=V", "efsdp=2 ep=4 etp=1", "efsdp=V ep=V etp=V"},
      {"dp=4 tp=2", "dp_shard=V tp=I", "efsdp=2 ep=2 etp=2", "efsdp=V ep=V etp=I"},
      {"dp=2 tp=3", "dp_shard=P tp=P", "efsdp=3 etp=2", "efsdp=P etp=P"},
      {"dp=2 tp=1", "dp_shard=V tp=I", "efsdp=2 ep=1 etp=1", "efsdp=V ep=V etp=I"},
      {"dp=2 tp=1", "dp_shard=V tp=I", "efsdp=1 ep=2 etp=1", "efsdp=V ep=V etp=I"},
      {"dp=1 cp=1 tp=1", "dp_shard=V cp=V tp=I", "efsdp=1 ep=1 etp=1", "efsdp=V ep=V etp=I"},
      {"dp=1", "dp_shard=V", "efsdp=1 ep=1 etp=1", "efsdp=V ep=V etp=V"},
      {"tp=1", "tp=R", "", ""},
      {"dp=2 tp=2", "dp=V tp=V", "efsdp=4", "efsdp=V dp_replicate=V"},
      {"dp=2 tp=2", "dp_shard=V tp=V pp=I block=P", "efsdp=4", "efsdp=V pp=I block=P"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ad_mesh *dense = NULL, *sparse = NULL;
    ad_layout layout, seen, expected;
    assert_int_equal(ad_mesh_create(cases[i][0], &dense), AD_OK);
    assert_int_equal(ad_mesh_create_view(dense, cases[i][2], &sparse), AD_OK);
    assert_int_equal(ad_layout_parse(dense, cases[i][1], &layout), AD_OK);
    assert_int_equal(ad_layout_parse(sparse, cases[i][3], &expected), AD_OK);
    assert_int_equal(ad_layout_view_at(&layout, sparse, &seen, NULL), AD_OK);
    assert_true(ad_layout_equal(&seen, &expected));
    ad_mesh_destroy(sparse);
    ad_mesh_destroy(dense);
  }
}

static void views_refuse_shardings_and_mixtures_and_name_the_repair(void **state) {
  static const struct {
    const char *mesh, *layout, *view, *facts[12];
  } cases[] = {
      {"dp=4 tp=2", "dp=V tp=S0", "efsdp=4 etp=2", {"tp", "etp", "moe.c:88", "R", "I", "P", "S(0)->V"}},
      {"dp=2 tp=3", "dp=V tp=I", "efsdp=3 etp=2", {"dp_shard,tp", "efsdp,etp", "R", "P", "I->S(0)", "S(0)->V"}},
      {"dp=2 tp=3", "dp=P tp=R", "efsdp=3 etp=2", {"tp", "R->P"}},
      {"dp=2 tp=3", "dp=R tp=I", "efsdp=3 etp=2", {"tp", "I->R"}},
      {"dp=2 cp=1", "dp=R cp=S1", "efsdp=2", {"cp", "S(1)->V"}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ad_mesh *dense = NULL, *sparse = NULL;
    ad_layout layout, seen;
    assert_int_equal(ad_mesh_create(cases[i].mesh, &dense), AD_OK);
    assert_int_equal(ad_mesh_create_view(dense, cases[i].view, &sparse), AD_OK);
    assert_int_equal(ad_layout_parse(dense, cases[i].layout, &layout), AD_OK);
    assert_int_equal(ad_layout_view_at(&layout, sparse, &seen, "moe.c:88"), AD_TYPE);
    assert_says_all(cases[i].facts);
    ad_mesh_destroy(sparse);
    ad_mesh_destroy(dense);
  }
}

static void a_view_of_other_ranks_is_refused(void **state) {
  ad_mesh *pool = NULL;
  ad_layout layout = ad_layout_all(mesh, AD_V), seen;
  assert_int_equal(ad_mesh_create_pool("ep=12", 12, &pool), AD_OK);
  assert_int_equal(ad_layout_view_at(&layout, pool, &seen, NULL), AD_INVALID);
  assert_says("ep=12", "0", "11", "12", "23");
  ad_mesh_destroy(pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_table_is_the_one_of_the_design),
      cmocka_unit_test(a_backward_goes_between_the_duals_and_back_again),
      cmocka_unit_test(what_is_not_in_the_table_is_refused),
      cmocka_unit_test(there_is_a_way_between_any_two_types),
      cmocka_unit_test(shardings_are_made_and_undone_innermost),
      cmocka_unit_test(a_move_that_does_not_exist_is_refused),
      cmocka_unit_test(the_path_of_a_gradient_follows_from_its_types),
      cmocka_unit_test(a_gradient_without_a_path_is_refused),
      cmocka_unit_test(an_axis_that_is_missing_in_the_mesh_takes_no_step),
      cmocka_unit_test(a_path_is_legal_step_by_step),
      cmocka_unit_test(views_keep_what_is_uniform),
      cmocka_unit_test(views_refuse_shardings_and_mixtures_and_name_the_repair),
      cmocka_unit_test(a_view_of_other_ranks_is_refused),
  };
  return cmocka_run_group_tests(tests, make_mesh, drop_mesh);
}
