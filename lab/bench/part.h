/* The measurements that need libaddend_train, as one record of functions, so that a program without that library can
 * measure the core alone. */
#ifndef BENCH_PART_H
#define BENCH_PART_H
#include <jansson.h>

#include "bench.h"
#include "cases.h"

/* Objects that a rank keeps from one task of the trainer to the next equal task. */
typedef struct bench_held bench_held;

typedef struct bench_part {
  int duties;                /* the duties (bench_duty bits) that need the trainer */
  const char *const *others; /* operations that are measured outside of the rounds of programs; ended by NULL */
  /* numel: number of a model's parameters. pools_numel: number of a decomposition's parameters, or of the elements
   * that an exchange between its pools must move. */
  size_t (*numel)(const bench_model *model);
  size_t (*pools_numel)(const bench_model *model, bench_duty duty, const char *storage, int ranks);
  /* Does one task of these duties on this rank; *held is NULL at the first call. */
  ad_status (*run)(ad_comm *comm, const bench_model *model, int plain, const bench_task *task, bench_held **held);
  void (*let_go)(bench_held *held); /* NULL allowed */
  /* Seconds that training steps waited for sums of gradients since the last call, by their reports. */
  double (*waited)(bench_held *held);
  /* Adds to the row which library computes the case's matrix products. */
  void (*add_products)(json_t *row, const bench_case *measured);
  void (*add_machine)(json_t *machine);
  /* Measures the operations `others` and adds their rows. Returns the first failure, or AD_INTERRUPTED if there was
   * one. */
  ad_status (*measure)(const bench_options *options, json_t *document, json_t *rows);
} bench_part;

extern const bench_part bench_trainer; /* in trainer/part.c; in a build without the trainer, in without_trainer.c */

#endif
