/* Tests pipeline stages without running them: how layers are divided into stages, what each stage has, and that all
 * stages together are the model without stages. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "allocations.h"
#include "base/memory.h"
#include "bridge/bridge.h"
#include "decoder/stages.h"
#include "gpt/gpt.h"
#include "program/program.h"
#include "says.h"

#define must(call) assert_int_equal((call), AD_OK)

enum { STAGES_MAX = 8, LAYERS_MAX = 9 };

/* ---- dividing layers into stages ---- */

static double largest_of(const int64_t *layers, double layer, double head, size_t stages) {
  double most = 0;
  for (size_t s = 0; s < stages; s++) {
    double cost = (double)layers[s] * layer + (s + 1 == stages ? head : 0);
    most = cost > most ? cost : most;
  }
  return most;
}

/* The largest stage's cost in the best division, found by trying every list of layers. */
static double best_of(int64_t left, double layer, double head, size_t stages) {
  double best = stages == 1 ? (double)left * layer + head : 1e300;
  for (int64_t first = 0; stages > 1 && first <= left; first++) {
    double own = (double)first * layer, rest = best_of(left - first, layer, head, stages - 1);
    double most = own > rest ? own : rest;
    best = most < best ? most : best;
  }
  return best;
}

static void the_largest_stage_is_as_small_as_any_cut_makes_it(void **state) {
  static const double heads[] = {0, 0.3, 1, 2.5, 7, 100};
  for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
    for (size_t stages = 1; stages <= 5; stages++)
      for (int64_t layers = 1; layers <= LAYERS_MAX; layers++) {
        int64_t cut[STAGES_MAX], sum = 0;
        ad_cut_layers(layers, 1, heads[h], stages, cut);
        for (size_t s = 0; s < stages; s++) {
          assert_true(cut[s] >= 0);
          sum += cut[s];
        }
        assert_int_equal(sum, layers);
        assert_true(largest_of(cut, 1, heads[h], stages) == best_of(layers, 1, heads[h], stages));
      }
}

/* ---- programs with stages, on backend dry ---- */

static char *text_paths[] = {(char[]){"/usr/share/common-licenses"}};

typedef struct made {
  ad_gpt_options options;
  ad_comm *comm;
  ad_program *program;
} made;

static ad_status try(made *m, const char *mesh, int64_t ranks, int64_t stages, const int64_t *layers, size_t count) {
  ad_program_setting setting = {.meshes = (const char *const[]){mesh},
                                .global_batch = 3,
                                .microbatches = 2,
                                .compute = AD_F32,
                                .stages = stages,
                                .stage_layers = layers,
                                .stage_layer_count = count};
  m->options = (ad_gpt_options){.decoder = {.layers = 4,
                                            .d_model = 8,
                                            .heads = 2,
                                            .tied = 1,
                                            .rotary_base = 10000,
                                            .norm_epsilon = 1e-5,
                                            .vocabulary = 256,
                                            .data = {.text = text_paths, .text_count = 1, .seq = 5}},
                                .d_hidden = 12};
  m->program = NULL;
  must(ad_comm_open_dry(0, ranks, &m->comm));
  setting.comm = m->comm;
  return ad_program_create(ad_gpt(), &m->options, &setting, &m->program);
}

static void destroy(made *m) {
  ad_program_destroy(m->program);
  ad_comm_close(m->comm);
}

static void names_of(const ad_program *program, char *out, size_t size) {
  char name[128];
  size_t used = 0;
  for (size_t m = 0; m < ad_program_module_count(program); m++)
    for (size_t i = 0; i < ad_program_module(program, m)->param_count; i++)
      used +=
          (size_t)snprintf(out + used, size - used, "%s\n", ad_program_param_name(program, m, i, name, sizeof name));
}

static void stages_have_together_the_parameters_of_one_in_their_order(void **state) {
  static const int64_t uneven[] = {0, 3, 1, 0};
  char whole[4096], cut[4096];
  made one, several;
  must(try(&one, "tp=2", 2, 0, NULL, 0));
  names_of(one.program, whole, sizeof whole);
  for (int given = 0; given < 2; given++) {
    must(try(&several, "pp=4 tp=2", 8, 0, given ? uneven : NULL, given ? 4 : 0));
    names_of(several.program, cut, sizeof cut);
    assert_string_equal(cut, whole);
    assert_int_equal(ad_program_stage_count(several.program), 4);
    destroy(&several);
  }
  assert_int_equal(ad_program_stage_count(one.program), 1);
  destroy(&one);
}

static void stage_s_lies_at_position_s_modulo_pp(void **state) {
  made m;
  must(try(&m, "pp=2 dp_shard=3", 6, 5, NULL, 0));
  assert_int_equal(ad_program_module_count(m.program), 5);
  for (size_t s = 0; s < 5; s++) {
    const ad_mesh *mesh = ad_program_mesh(m.program, s);
    assert_string_equal(ad_mesh_text(mesh), "dp_shard=3");
    assert_int_equal(ad_mesh_first_rank(mesh), s % 2 ? 3 : 0);
    assert_string_equal(ad_program_module(m.program, s)->name, "model");
  }
  assert_string_equal(ad_mesh_text(ad_program_pool(m.program, 0)), "pp=2 dp_shard=3");
  destroy(&m);
}

/* Transfers between the same ranks are told apart by their bridges' tags. */
static void tags_differ(const ad_program *program) {
  size_t count = ad_program_transfer_count(program);
  for (size_t i = 0; i < count; i++)
    for (size_t k = 0; k < i; k++)
      assert_int_not_equal(ad_program_transfer(program, i)->bridge->options.tag,
                           ad_program_transfer(program, k)->bridge->options.tag);
}

/* The residual stream goes to the next stage and the embedding to the last; stages on the same
 * ranks exchange nothing. */
static void what_continues_is_transferred_where_ranks_differ(void **state) {
  static const struct {
    const char *mesh;
    int64_t ranks, stages;
    size_t transfers;
  } table[] = {{"pp=1", 1, 1, 0}, {"pp=1", 1, 3, 0}, {"pp=2", 2, 2, 2},
               {"pp=2", 2, 3, 2}, {"pp=2", 2, 4, 4}, {"pp=4", 4, 4, 4}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    made m;
    must(try(&m, table[i].mesh, table[i].ranks, table[i].stages, NULL, 0));
    assert_int_equal(ad_program_phase_count(m.program), table[i].stages);
    assert_int_equal(ad_program_transfer_count(m.program), table[i].transfers);
    tags_differ(m.program);
    destroy(&m);
  }
}

static void one_stage_has_the_phase_that_it_always_had(void **state) {
  made m;
  must(try(&m, "dp=2", 2, 0, NULL, 0));
  const ad_phase *phase = ad_program_phase(m.program, 0);
  assert_string_equal(phase->name, "model");
  assert_null(phase->needs[0]);
  assert_null(phase->gives[0]);
  destroy(&m);
}

static void refused(const char *name, const char *const *facts, const char *mesh, int64_t ranks, int64_t stages,
                    const int64_t *layers, size_t count) {
  made m;
  assert_int_equal(try(&m, mesh, ranks, stages, layers, count), AD_INVALID);
  assert_null(m.program);
  assert_says_in(name, ad_last_error(), facts);
  ad_comm_close(m.comm);
}

static void stages_that_do_not_fit_are_refused(void **state) {
  static const int64_t few[] = {2, 1}, below[] = {5, -1};
  refused("fewer stages than ranks", SAYS_FACTS("pp=3", "2"), "pp=3", 3, 2, NULL, 0);
  refused("pp behind dp", SAYS_FACTS("pp", "dp_shard=2 pp=2"), "dp_shard=2 pp=2", 4, 0, NULL, 0);
  refused("two numbers for three stages", SAYS_FACTS("schedule.layers", "2", "3"), "pp=3", 3, 0, few, 2);
  refused("too few layers", SAYS_FACTS("schedule.layers", "0", "model.layers", "3", "4"), "pp=2", 2, 0, few, 2);
  refused("a negative number", SAYS_FACTS("schedule.layers", "0", "model.layers", "4"), "pp=2", 2, 0, below, 2);
}

static void memory_that_runs_out_leaves_nothing_behind(void **state) {
  ad_status status = AD_MEMORY;
  int n = 0;
  for (; status == AD_MEMORY; n++) {
    made m;
    m.program = NULL;
    ad_memory_fail_at(0);
    ad_comm *comm;
    must(ad_comm_open_dry(0, 2, &comm));
    ad_program_setting setting = {
        .comm = comm, .meshes = (const char *const[]){"pp=2"}, .global_batch = 3, .microbatches = 2, .compute = AD_F32};
    m.options = (ad_gpt_options){.decoder = {.layers = 2,
                                             .d_model = 8,
                                             .heads = 2,
                                             .tied = 1,
                                             .rotary_base = 10000,
                                             .norm_epsilon = 1e-5,
                                             .vocabulary = 256,
                                             .data = {.text = text_paths, .text_count = 1, .seq = 5}},
                                 .d_hidden = 12};
    ad_memory_fail_at(n + 1);
    status = ad_program_create(ad_gpt(), &m.options, &setting, &m.program);
    assert_true(reports_allocation(n + 1, status));
    ad_program_destroy(m.program);
    ad_comm_close(comm);
  }
  must(status);
  assert_true(n > 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_largest_stage_is_as_small_as_any_cut_makes_it),
      cmocka_unit_test(stages_have_together_the_parameters_of_one_in_their_order),
      cmocka_unit_test(stage_s_lies_at_position_s_modulo_pp),
      cmocka_unit_test(what_continues_is_transferred_where_ranks_differ),
      cmocka_unit_test(one_stage_has_the_phase_that_it_always_had),
      cmocka_unit_test(stages_that_do_not_fit_are_refused),
      cmocka_unit_test(memory_that_runs_out_leaves_nothing_behind),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
