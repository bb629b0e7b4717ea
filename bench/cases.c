/* The list of cases. */
#include "cases.h"

#include <stdio.h>
#include <string.h>

#include "library.h"

static const size_t KIB = 1024, MIB = 1024 * 1024;

typedef struct kind_of_case {
  const char *op, *dtype;
  int in_place;
  bench_duty duty;
} kind_of_case;

static const kind_of_case kinds[] = {
    {"all_reduce", "f32", 1, BENCH_COLLECTIVES},
    {"all_reduce", "f32", 0, BENCH_COLLECTIVES},
    {"all_reduce", "bf16", 1, BENCH_COLLECTIVES},
    {"all_reduce", "f16", 1, BENCH_COLLECTIVES},
    {"reduce_scatter", "f32", 0, BENCH_COLLECTIVES},
    {"reduce_scatter", "f32", 1, BENCH_COLLECTIVES},
    {"all_gather", "f32", 0, BENCH_COLLECTIVES},
    {"all_gather", "f32", 1, BENCH_COLLECTIVES},
    {"reducer", "f32", 1, BENCH_REDUCER},
    {"reducer", "f32", 0, BENCH_REDUCER},
    {"copy_in", "f32", 0, BENCH_REDUCER},
    {"train_step", "f32", 1, BENCH_TRAINING},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

int bench_has_op(const char *op) {
  for (int i = 0; i < KINDS; i++)
    if (!strcmp(kinds[i].op, op)) return 1;
  return !strcmp(op, "startup");
}

typedef struct case_list {
  const bench_options *options;
  bench_case *cases;
  int count, max;
} case_list;

static void add(case_list *list, const kind_of_case *kind, int ranks, size_t bytes) {
  if (list->count == list->max || (list->options->largest && bytes > list->options->largest)) return;
  bench_case *next = &list->cases[list->count++];
  *next = (bench_case){.ranks = ranks, .duty = kind->duty, .task = {.bytes = bytes, .in_place = kind->in_place}};
  snprintf(next->task.op, sizeof next->task.op, "%s", kind->op);
  snprintf(next->task.dtype, sizeof next->task.dtype, "%s", kind->dtype);
}

static void add_sizes(case_list *list, const kind_of_case *kind, int ranks) {
  const size_t sizes[] = {KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB};
  int count = list->options->quick ? 3 : 5;
  for (int i = 0; i < count; i++) add(list, kind, ranks, sizes[i]);
}

static void add_duty(case_list *list, bench_duty duty, int ranks) {
  const char *only = list->options->op;
  for (int i = 0; i < KINDS; i++) {
    if (kinds[i].duty != duty || (only && strcmp(only, kinds[i].op) != 0)) continue;
    if (duty == BENCH_COLLECTIVES)
      add_sizes(list, &kinds[i], ranks);
    else
      add(list, &kinds[i], ranks, bench_gradient_bytes());
  }
}

int bench_cases(const bench_options *options, bench_case *cases, int max) {
  case_list list = {.options = options, .cases = cases, .max = max};
  for (int i = 0; i < options->rank_count; i++) {
    add_duty(&list, BENCH_COLLECTIVES, options->ranks[i]);
    add_duty(&list, BENCH_REDUCER, options->ranks[i]);
  }
  if (options->quick && !options->op) return list.count;
  add_duty(&list, BENCH_TRAINING, 1);
  add_duty(&list, BENCH_TRAINING, 2);
  return list.count;
}
