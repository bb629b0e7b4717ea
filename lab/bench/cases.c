/* Makes the list of cases: operations, dtypes, sizes and numbers of ranks. */
#include "cases.h"

#include <stdio.h>
#include <string.h>

#include "part.h"

/* Rounds per case; FEW_ROUNDS if a step takes seconds. */
enum { ROUNDS = BENCH_ROUNDS_MAX, FEW_ROUNDS = 5, QUICK_ROUNDS = 3 };
static const size_t KIB = 1024, MIB = 1024 * 1024;

typedef struct kind_of_case {
  const char *op, *dtype, *storage;
  int in_place;
  bench_duty duty;
} kind_of_case;

static const kind_of_case kinds[] = {
    {"all_reduce", "f32", "whole", 1, BENCH_COLLECTIVES},
    {"all_reduce", "f32", "whole", 0, BENCH_COLLECTIVES},
    {"all_reduce", "bf16", "whole", 1, BENCH_COLLECTIVES},
    {"all_reduce", "f16", "whole", 1, BENCH_COLLECTIVES},
    {"reduce_scatter", "f32", "whole", 0, BENCH_COLLECTIVES},
    {"reduce_scatter", "f32", "whole", 1, BENCH_COLLECTIVES},
    {"all_gather", "f32", "whole", 0, BENCH_COLLECTIVES},
    {"all_gather", "f32", "whole", 1, BENCH_COLLECTIVES},
    {"reducer", "f32", "whole", 1, BENCH_REDUCER},
    {"reducer", "f32", "whole", 0, BENCH_REDUCER},
    {"copy_in", "f32", "whole", 0, BENCH_REDUCER},
    {"copy_in", "bf16", "whole", 0, BENCH_REDUCER},
    {"copy_in", "f16", "whole", 0, BENCH_REDUCER},
    {"sharded_step", "f32", "zero1", 1, BENCH_SHARDED},
    {"sharded_step", "f32", "zero2", 1, BENCH_SHARDED},
    {"sharded_step", "f32", "zero3", 1, BENCH_SHARDED},
    {"sharded_step", "bf16", "zero1", 0, BENCH_SHARDED},
    {"sharded_step", "bf16", "zero2", 0, BENCH_SHARDED},
    {"sharded_step", "bf16", "zero3", 0, BENCH_SHARDED},
    {"update", "f32", "zero1", 0, BENCH_UPDATE},
    {"update", "f32", "zero3", 0, BENCH_UPDATE},
    {"muon", "f32", "zero1", 0, BENCH_MUON},
    {"muon", "f32", "zero3", 0, BENCH_MUON},
    {"train_step", "f32", "whole", 1, BENCH_TRAINING},
    {"train_step", "bf16", "whole", 1, BENCH_TRAINING},
    {"leaves", "f32", "whole", 1, BENCH_LEAVES},
    {"leaves", "f32", "zero1", 1, BENCH_LEAVES},
    {"leaves", "f32", "zero3", 1, BENCH_LEAVES},
    {"leaves", "bf16", "whole", 1, BENCH_LEAVES},
    {"leaves", "bf16", "zero1", 1, BENCH_LEAVES},
    {"leaves", "bf16", "zero3", 1, BENCH_LEAVES},
    {"parallel_step", "f32", "tp", 1, BENCH_TENSOR},
    {"parallel_step", "f32", "tp_sequence", 1, BENCH_TENSOR},
    {"parallel_step", "f32", "fsdp_tp", 1, BENCH_HYBRID},
    {"exchange", "f32", "whole", 0, BENCH_ROUTING},
    {"grouped", "f32", "whole", 0, BENCH_GROUPED},
    {"experts", "f32", "whole", 0, BENCH_LAYER},
    {"bridge", "f32", "fan_in", 0, BENCH_BRIDGE},
    {"bridge", "f32", "fan_out", 0, BENCH_BRIDGE},
    {"bridge", "f32", "equal", 0, BENCH_BRIDGE},
    {"pipeline", "f32", "gpipe", 1, BENCH_PIPELINE},
    {"pipeline", "f32", "1f1b", 1, BENCH_PIPELINE},
    {"pipeline", "f32", "interleaved", 1, BENCH_PIPELINE},
    {"pipeline", "f32", "zb", 1, BENCH_PIPELINE},
    {"decompose_step", "f32", "pools", 1, BENCH_DECOMPOSITION},
    {"decompose_exchange", "f16", "ci_blocks", 0, BENCH_TRANSFER},
    {"decompose_exchange", "f16", "ci_adv", 0, BENCH_TRANSFER},
    {"decompose_exchange", "bf16", "blocks_ci", 0, BENCH_TRANSFER},
    {"decompose_exchange", "bf16", "adv_ci", 0, BENCH_TRANSFER},
    {"decompose_exchange", "bf16", "blocks_adv", 0, BENCH_TRANSFER},
    {"decompose_exchange", "bf16", "adv_blocks", 0, BENCH_TRANSFER},
    {"all_reduce", "f32", "whole", 1, BENCH_TORCH},
    {"all_reduce", "bf16", "whole", 1, BENCH_TORCH},
    {"all_gather", "f32", "whole", 0, BENCH_TORCH},
    {"reduce_scatter", "f32", "whole", 0, BENCH_TORCH},
    {"all_to_all", "f32", "whole", 0, BENCH_TORCH},
    {"train_step", "f32", "whole", 1, BENCH_TORCH_STEP},
    {"train_step", "f32", "zero3", 1, BENCH_TORCH_STEP},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const char *const others[] = {"startup", "errors", "all_to_all"};
enum { OTHERS = sizeof others / sizeof *others };

static int is_there(bench_duty duty) {
  return duty & (BENCH_COLLECTIVES | BENCH_BRIDGE | BENCH_TORCH | bench_trainer.duties);
}

/* Returns the operation's name for --op; everything that is measured through PyTorch's process group is
 * "torch_group". */
static const char *asked(const kind_of_case *kind) {
  return kind->duty & (BENCH_TORCH | BENCH_TORCH_STEP) ? "torch_group" : kind->op;
}

/* Returns 1 if kind number `kind` has another operation than the previous kind; kinds of one operation are adjacent. */
static int is_another_op(int kind) { return !kind || strcmp(asked(&kinds[kind]), asked(&kinds[kind - 1])) != 0; }

const char *bench_op(int index) {
  for (int i = 0; i < KINDS; i++)
    if (is_there(kinds[i].duty) && is_another_op(i) && !index--) return asked(&kinds[i]);
  if (index < OTHERS) return others[index];
  for (int i = 0; bench_trainer.others[i]; i++)
    if (i == index - OTHERS) return bench_trainer.others[i];
  return NULL;
}

int bench_has_op(const char *op) {
  const char *known;
  for (int i = 0; (known = bench_op(i)); i++)
    if (!strcmp(known, op)) return 1;
  return 0;
}

typedef struct case_list {
  const bench_options *options;
  bench_case *cases;
  int count, max;
  int doubled;        /* 1: the next cases train the wider of the two models for train_step */
  const char *memory; /* kind of memory for the next cases; "": each program uses its own kind */
} case_list;

/* Returns the model of a case. sharded_step has the largest model, so that its data does not fit into caches.
 * torch_group has a small model, since the memory of PyTorch's ranks and of addend's is in use at the same time: with
 * 100 million parameters on four ranks, all programs together would need more than 24 GB. */
static const bench_model *model_of(const case_list *list, bench_duty duty) {
  if (duty & (BENCH_DECOMPOSITION | BENCH_TRANSFER))
    return list->options->quick ? &bench_tiny_decomposed : &bench_decomposed;
  if (duty == BENCH_TRAINING && list->doubled) return list->options->quick ? &bench_tiny_doubled : &bench_small_doubled;
  if (duty & (BENCH_TRAINING | BENCH_TORCH_STEP | BENCH_LEAVES) && list->options->quick) return &bench_tiny;
  if (duty == BENCH_LEAVES) return &bench_leaves;
  if (duty == BENCH_MUON && list->options->quick) return &bench_tiny;
  if (duty == BENCH_PIPELINE) return list->options->quick ? &bench_tiny_staged : &bench_staged;
  if (duty & (BENCH_TENSOR | BENCH_HYBRID)) return list->options->quick ? &bench_tiny : &bench_wide;
  return duty == BENCH_SHARDED && !list->options->quick ? &bench_large : &bench_small;
}

static int takes_seconds(const case_list *list, const kind_of_case *kind) {
  return list->doubled || kind->duty == BENCH_PIPELINE;
}

static void add(case_list *list, const kind_of_case *kind, int ranks, size_t bytes) {
  if (list->count == list->max || (list->options->largest && bytes > list->options->largest)) return;
  bench_case *next = &list->cases[list->count++];
  *next = (bench_case){.ranks = ranks,
                       .rounds = list->options->quick        ? QUICK_ROUNDS
                                 : takes_seconds(list, kind) ? FEW_ROUNDS
                                                             : ROUNDS,
                       .op = asked(kind),
                       .duty = kind->duty,
                       .model = model_of(list, kind->duty),
                       .task = {.bytes = bytes, .in_place = kind->in_place}};
  snprintf(next->task.storage, sizeof next->task.storage, "%s", kind->storage);
  snprintf(next->task.op, sizeof next->task.op, "%s", kind->op);
  snprintf(next->task.memory, sizeof next->task.memory, "%s", list->memory);
  snprintf(next->task.dtype, sizeof next->task.dtype, "%s", kind->dtype);
}

static void add_sizes(case_list *list, const kind_of_case *kind, int ranks) {
  size_t least = kind->duty == BENCH_TORCH ? 4 * KIB : KIB;
  const size_t sizes[] = {least, 64 * KIB, MIB, 16 * MIB, 64 * MIB};
  int count = list->options->quick ? 3 : 5;
  for (int i = 0; i < count; i++) add(list, kind, ranks, sizes[i]);
}

/* Adds the cases of expert parallelism; the size of a case is that of rows of 2 KiB: slots to exchange or to
 * multiply, or a layer's tokens. */
static void add_rows(case_list *list, const kind_of_case *kind, int ranks) {
  const size_t exchanged[] = {64 * KIB, MIB, 16 * MIB}, computed[] = {2 * MIB, 8 * MIB, 32 * MIB};
  int is_exchange = kind->duty == BENCH_ROUTING, count = !list->options->quick ? 3 : is_exchange ? 2 : 1;
  for (int i = 0; i < count; i++) add(list, kind, ranks, is_exchange ? exchanged[i] : computed[i]);
}

/* Adds the cases of the bridge between pairs of ranks; the size of a case is that of a batch of rows of 2 KiB. */
static void add_batches(case_list *list, const kind_of_case *kind, int ranks) {
  const size_t sizes[] = {64 * KIB, MIB, 16 * MIB};
  int count = list->options->quick ? 2 : 3;
  for (int i = 0; i < count && ranks % 2 == 0; i++) add(list, kind, ranks, sizes[i]);
}

/* Adds the cases of pools; the size of a case is that of the data to move (exchange) or of the parameters (step). */
static void add_pools(case_list *list, const kind_of_case *kind, int ranks) {
  const bench_model *model = model_of(list, kind->duty);
  size_t numel = bench_trainer.pools_numel(model, kind->duty, kind->storage, ranks);
  add(list, kind, ranks, numel * bench_element(kind->dtype));
}

/* Returns the bytes of the model's parameters; those of train_step and leaves are f32, whatever dtype the step
 * computes in. */
static size_t parameter_bytes(const case_list *list, const kind_of_case *kind) {
  const char *dtype = kind->duty & (BENCH_TRAINING | BENCH_LEAVES) ? "f32" : kind->dtype;
  return bench_trainer.numel(model_of(list, kind->duty)) * bench_element(dtype);
}

/* Returns 1 if the case can use the kind of memory list->memory: DDP's buckets are always in ordinary memory; only
 * FSDP2 (zero3) can use the process group's shared memory. */
static int has_that_memory(const case_list *list, const kind_of_case *kind) {
  return kind->duty != BENCH_TORCH_STEP || !strcmp(kind->storage, "zero3") || !strcmp(list->memory, "ordinary");
}

static void add_duty(case_list *list, bench_duty duty, int ranks) {
  const char *only = list->options->op;
  for (int i = 0; i < KINDS && is_there(duty); i++) {
    if (kinds[i].duty != duty || (only && strcmp(only, asked(&kinds[i])) != 0)) continue;
    if (!has_that_memory(list, &kinds[i])) continue;
    if (duty & (BENCH_COLLECTIVES | BENCH_TORCH))
      add_sizes(list, &kinds[i], ranks);
    else if (duty & (BENCH_ROUTING | BENCH_GROUPED | BENCH_LAYER))
      add_rows(list, &kinds[i], ranks);
    else if (duty == BENCH_BRIDGE)
      add_batches(list, &kinds[i], ranks);
    else if (duty & (BENCH_DECOMPOSITION | BENCH_TRANSFER))
      add_pools(list, &kinds[i], ranks);
    else
      add(list, &kinds[i], ranks, parameter_bytes(list, &kinds[i]));
  }
}

/* Adds the cases through PyTorch's process group. They repeat operations of the cases above, so they are added only
 * if the options ask for peers or for the operation. */
static void add_group(case_list *list, int ranks, int few) {
  if (!list->options->peers && !list->options->op) return;
  static const char *const memories[] = {"comm", "ordinary"};
  for (int i = 0; i < 2; i++) {
    list->memory = memories[i];
    add_duty(list, BENCH_TORCH, ranks);
  }
  for (int i = 0; i < 2 && few; i++) {
    list->memory = memories[i];
    add_duty(list, BENCH_TORCH_STEP, ranks);
  }
  list->memory = "";
}

/* Adds all cases for this number of ranks. `few` is 1 if the number is small enough for cases that need gigabytes. */
static void add_ranks(case_list *list, int ranks, int few) {
  add_duty(list, BENCH_COLLECTIVES, ranks);
  add_duty(list, BENCH_REDUCER, ranks);
  if (few) add_duty(list, BENCH_SHARDED, ranks);
  add_duty(list, BENCH_UPDATE, ranks);
  if (few) add_duty(list, BENCH_MUON, ranks);
  if (few) add_duty(list, BENCH_ROUTING, ranks);
  if (few) add_duty(list, BENCH_LEAVES, ranks);
  add_duty(list, BENCH_BRIDGE, ranks);
  add_group(list, ranks, few);
}

static void add_training(case_list *list) {
  for (list->doubled = 0; list->doubled < 2; list->doubled++)
    for (int ranks = 1; ranks <= 2; ranks++) add_duty(list, BENCH_TRAINING, ranks);
  list->doubled = 0;
}

int bench_cases(const bench_options *options, bench_case *cases, int max) {
  static const int usual[] = {2, 4, 8}, pools[] = {3, 10}, most_few = 4;
  case_list list = {.options = options, .cases = cases, .max = max, .memory = ""};
  for (int i = 0; i < options->rank_count; i++) add_ranks(&list, options->ranks[i], 1);
  for (int i = 0; !options->rank_count && i < (options->quick ? 1 : 3); i++)
    add_ranks(&list, usual[i], usual[i] <= most_few);
  if (options->quick && !options->op) return list.count;
  add_training(&list);
  add_duty(&list, BENCH_TENSOR, 2);
  add_duty(&list, BENCH_HYBRID, 4);
  add_duty(&list, BENCH_PIPELINE, 2);
  add_duty(&list, BENCH_GROUPED, 1);
  add_duty(&list, BENCH_LAYER, 1);
  for (int i = 0; i < 2; i++) {
    add_duty(&list, BENCH_DECOMPOSITION, pools[i]);
    add_duty(&list, BENCH_TRANSFER, pools[i]);
  }
  return list.count;
}
