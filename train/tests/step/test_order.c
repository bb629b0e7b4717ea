/* Tests the table of actions that a run makes: which phases send what to which, over which ways, and what happens on
 * ranks that modules share. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "allocations.h"
#include "base/error.h"
#include "base/memory.h"
#include "says.h"
#include "schedule/table.h"
#include "step/order.h"

#define must(call) assert_int_equal((call), AD_OK)
enum { PHASES_MAX = 3, MODULES = 2, MICROBATCHES = 2 };

/* A program with two modules of two ranks each; its first phase runs on the first module, all others on the second. */
typedef struct made {
  ad_mesh *meshes[MODULES];
  ad_phase phases[PHASES_MAX];
  const char *values[2];
  ad_transfer_spec transfers[2];
  ad_program program;
} made;

static const char *const x[] = {"x", NULL}, *const both[] = {"x", "y", NULL};

/* Makes the program on paper; `first_rank` is the first rank of the second module. */
static void make(made *m, int64_t first_rank, size_t phases, const char *const *handed) {
  *m = (made){.values = {"x", "y"}};
  must(ad_mesh_create_pool("dp=2", 0, &m->meshes[0]));
  must(ad_mesh_create_pool("dp=2", first_rank, &m->meshes[1]));
  m->phases[0] = (ad_phase){.name = "giver", .gives = handed};
  for (size_t p = 1; p < phases; p++) m->phases[p] = (ad_phase){.name = "user", .module = 1, .needs = handed};
  m->program = (ad_program){.meshes = m->meshes,
                            .mesh_count = MODULES,
                            .phases = m->phases,
                            .phase_count = phases,
                            .values = m->values,
                            .value_count = 2,
                            .transfers = m->transfers,
                            .transfer_count = 2};
  for (size_t v = 0; v < 2; v++) m->transfers[v] = (ad_transfer_spec){.value = m->values[v], .module = 1};
}

static void destroy(made *m) {
  for (size_t i = 0; i < MODULES; i++) ad_mesh_destroy(m->meshes[i]);
}

/* Checks the edges between stages in the program's table; destroys the program. */
static void has_edges(made *m, size_t count, const ad_stage_edge *edges) {
  ad_order order;
  must(ad_order_create(&m->program, 0, MICROBATCHES, NULL, &order));
  assert_int_equal(ad_table_edge_count(order.table), count);
  for (size_t e = 0; e < count; e++) {
    ad_stage_edge edge = ad_table_edge(order.table, e);
    assert_int_equal(edge.from, edges[e].from);
    assert_int_equal(edge.to, edges[e].to);
    assert_int_equal(edge.way, edges[e].way);
  }
  ad_order_release(&order);
  destroy(m);
}

/* The first phase on a module's ranks that needs a value brings it there; later phases take it from that phase. */
static void a_second_user_gets_a_value_from_the_first_one_of_its_ranks(void **state) {
  made m;
  make(&m, 2, 3, x);
  has_edges(&m, 2, (ad_stage_edge[]){{0, 1, AD_STAGE_BOTH_WAYS}, {1, 2, AD_STAGE_BOTH_WAYS}});
  make(&m, 0, 3, x);
  has_edges(&m, 2, (ad_stage_edge[]){{0, 1, AD_STAGE_BOTH_WAYS}, {0, 2, AD_STAGE_BOTH_WAYS}});
}

static void gradients_come_back_over_an_edge_if_that_of_any_value_does(void **state) {
  for (int one_ways = 0; one_ways < 4; one_ways++) {
    made m;
    make(&m, 2, 2, both);
    for (int v = 0; v < 2; v++) m.transfers[v].one_way = one_ways >> v & 1;
    has_edges(&m, 1, (ad_stage_edge[]){{0, 1, one_ways == 3 ? AD_STAGE_ONE_WAY : AD_STAGE_BOTH_WAYS}});
  }
}

static void modules_that_share_some_of_their_ranks_are_refused(void **state) {
  made m;
  ad_order order;
  make(&m, 1, 2, x);
  assert_int_equal(ad_order_create(&m.program, 1, MICROBATCHES, NULL, &order), AD_INVALID);
  assert_says("user", "rank 1");
  assert_null(order.own);
  assert_int_equal(ad_order_count(&order), 0);
  destroy(&m);
}

/* Edges that were not all found for want of memory are no table: each allocation fails in turn. */
static void without_memory_there_is_no_table(void **state) {
  ad_status status = AD_MEMORY;
  long n = 1;
  for (; status; n++) {
    made m;
    ad_order order;
    make(&m, 2, 3, both);
    ad_memory_fail_at(n);
    status = ad_order_create(&m.program, 0, MICROBATCHES, NULL, &order);
    assert_true(reports_allocation(n, status));
    ad_order_release(&order);
    destroy(&m);
  }
  assert_true(n > 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_second_user_gets_a_value_from_the_first_one_of_its_ranks),
      cmocka_unit_test(gradients_come_back_over_an_edge_if_that_of_any_value_does),
      cmocka_unit_test(modules_that_share_some_of_their_ranks_are_refused),
      cmocka_unit_test(without_memory_there_is_no_table),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
