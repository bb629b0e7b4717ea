/* What is measured of libaddend_train, as one record, so that a program without it measures the core. */
#ifndef BENCH_PART_H
#define BENCH_PART_H
#include <jansson.h>

#include "bench.h"
#include "cases.h"

/* What a rank keeps from one task of the trainer's to the next of the same kind. */
typedef struct bench_held bench_held;

typedef struct bench_part {
  int duties;                /* that need the trainer */
  const char *const *others; /* operations that are measured outside of rounds; ended by NULL */
  /* Parameters of a model, or, of a decomposition and of an exchange between its pools, elements that must move. */
  size_t (*numel)(const bench_model *model);
  size_t (*pools_numel)(const bench_model *model, bench_duty duty, const char *storage, int ranks);
  /* One task of these duties, on this rank; *held is NULL at the first. */
  ad_status (*run)(ad_comm *comm, const bench_model *model, int plain, const bench_task *task, bench_held **held);
  void (*let_go)(bench_held *held); /* NULL allowed */
  /* Seconds that training steps waited for sums of gradients since this was asked last, as their reports say. */
  double (*waited)(bench_held *held);
  /* Adds to the row how products of this case are made. */
  void (*add_products)(json_t *row, const bench_case *measured);
  void (*add_machine)(json_t *machine);
  /* Adds what is measured outside of rounds. The first failure, AD_INTERRUPTED before any other. */
  ad_status (*measure)(const bench_options *options, json_t *document, json_t *rows);
} bench_part;

extern const bench_part bench_trainer; /* of trainer/part.c, or without_trainer.c, where no duty needs it */

/* 1 if this operation was asked for, or all were. */
int bench_wants(const bench_options *options, const char *op);
/* The first failure counts, but for a request to stop, which counts before any. */
void bench_keep(ad_status *first, ad_status next);

#endif
