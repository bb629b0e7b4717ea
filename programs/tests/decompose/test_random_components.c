/* Tests which components of a random decomposition are kept at a position: the largest (the first of equal ones), or
 * random ones, which depend on the place in the text and not on the row. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "decompose/random_components.h"

enum { ROWS = 2, COMPONENTS = 5 };

/* Two sites; the sizes of the second site's components are 1, 2, 4, 1, 1. */
typedef struct made {
  ad_array u[2], mask, h;
  double *sizes[2], of_site[COMPONENTS], order[2 * COMPONENTS];
  double values[ROWS][COMPONENTS], kept[ROWS][COMPONENTS];
  ad_random_components components;
} made;

static void make(made *m) {
  ad_array rows = {.dtype = AD_F64, .shape = {3, {1, ROWS, COMPONENTS}}, .local = {3, {1, ROWS, COMPONENTS}}};
  *m = (made){.of_site = {1, 2, 4, 1, 1}};
  m->u[0] = m->u[1] = (ad_array){.dtype = AD_F64, .shape = {2, {COMPONENTS, 3}}};
  m->sizes[0] = m->sizes[1] = m->of_site;
  m->h = m->mask = rows;
  m->h.data = m->values;
  m->mask.data = m->kept;
  m->components = (ad_random_components){.u = m->u, .sizes = m->sizes, .site_count = 2, .seed = 3, .order = m->order};
}

static size_t kept_in(const made *m, size_t row) {
  size_t kept = 0;
  for (int c = 0; c < COMPONENTS; c++) {
    assert_true(m->kept[row][c] == 0 || m->kept[row][c] == 1);
    kept += m->kept[row][c] == 1;
  }
  return kept;
}

/* |h| times the sizes is 3, 4, 4, 4, 0. */
static void those_that_do_most_are_kept_and_of_equal_ones_the_first(void **state) {
  static const double values[COMPONENTS] = {-3, 2, -1, 4, 0};
  static const double wanted[COMPONENTS + 1][COMPONENTS] = {{0, 0, 0, 0, 0}, {0, 1, 0, 0, 0}, {0, 1, 1, 0, 0},
                                                            {0, 1, 1, 1, 0}, {1, 1, 1, 1, 0}, {1, 1, 1, 1, 1}};
  made m;
  make(&m);
  memcpy(m.values[1], values, sizeof values);
  for (size_t count = 0; count <= COMPONENTS; count++) {
    ad_random_components_keep_largest(&m.components, 1, &m.h, 1, count, &m.mask);
    assert_memory_equal(m.kept[1], wanted[count], sizeof values);
    assert_int_equal(kept_in(&m, 0), 0);
  }
}

static void any_are_as_many_as_are_asked_for_and_more_of_them_the_same_ones(void **state) {
  made m;
  make(&m);
  for (size_t count = 0; count <= COMPONENTS; count++) {
    double before[COMPONENTS];
    memcpy(before, m.kept[0], sizeof before);
    ad_random_components_keep_any(&m.components, 0, 17, 0, count, &m.mask);
    assert_int_equal(kept_in(&m, 0), count);
    for (int c = 0; c < COMPONENTS; c++) assert_true(m.kept[0][c] >= before[c]);
  }
}

static int differs(made *m, size_t site, size_t place) {
  ad_random_components_keep_any(&m->components, 0, 1, 0, 2, &m->mask);
  ad_random_components_keep_any(&m->components, site, place, 1, 2, &m->mask);
  return memcmp(m->kept[0], m->kept[1], sizeof m->kept[0]) != 0;
}

static void any_are_drawn_for_the_place_and_the_site_and_not_for_the_row(void **state) {
  made m;
  int other_places = 0, other_sites = 0;
  make(&m);
  assert_false(differs(&m, 0, 1));
  for (size_t place = 2; place < 12; place++) other_places += differs(&m, 0, place);
  assert_true(other_places > 5);
  for (size_t seed = 0; seed < 10; seed++) {
    m.components.seed = seed;
    other_sites += differs(&m, 1, 1);
  }
  assert_true(other_sites > 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(those_that_do_most_are_kept_and_of_equal_ones_the_first),
      cmocka_unit_test(any_are_as_many_as_are_asked_for_and_more_of_them_the_same_ones),
      cmocka_unit_test(any_are_drawn_for_the_place_and_the_site_and_not_for_the_row),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
