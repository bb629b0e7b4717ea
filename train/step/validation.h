/* Writes validation.jsonl: a line for each evaluation, with the loss of each sample of the validation set. Judges from
 * these losses whether the loss changed. */
#ifndef TRAIN_VALIDATION_H
#define TRAIN_VALIDATION_H
#include <stdio.h>
#include "addend/train.h"
#include "tensor/tape.h"

enum { AD_BEFORE_FIRST_STEP = -1 }; /* the step of an evaluation before any update */

/* An evaluation with which later ones are compared. */
typedef struct ad_validation_point {
  int64_t step;
  double loss;            /* nats per position */
  ad_sample_losses noted; /* the losses of samples; size is 0 if there was no evaluation */
} ad_validation_point;

typedef struct ad_validation {
  FILE *file;
  char *path;
  ad_validation_point first, best; /* the first evaluation of the run, and the one with the lowest loss so far */
} ad_validation;

typedef struct ad_validation_changes {
  ad_validation_change since_first, since_best;
} ad_validation_changes;

/* Opens the file in the run's folder, and finds the first and the best evaluation among those that an earlier training
 * wrote about steps before `first_step`. */
ad_status ad_validation_open(const char *folder, int64_t first_step, ad_validation *out) AD_CHECKED;
/* Writes the line of an evaluation, and compares the evaluation with the first and with the best before it. `noted` is
 * copied. */
ad_status ad_validation_add(ad_validation *validation, int64_t step, const ad_sample_losses *noted,
                            ad_validation_changes *out) AD_CHECKED;
ad_status ad_validation_close(ad_validation *validation) AD_CHECKED; /* returns AD_IO if lines were lost */
void ad_validation_destroy(ad_validation *validation);

/* Returns how the loss changed from one evaluation to another of the same samples. For the n samples that count in
 * both, let x be the sums before, y the sums now, and c the counts. The change is the ratio r = sum(y - x) / sum(c).
 * Its standard error is sqrt(n / (n - 1) * sum((y - x - r c)^2)) / sum(c). */
ad_validation_change ad_validation_compare(const ad_validation_point *before, const ad_sample_losses *now);

#endif
