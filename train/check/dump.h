/* Writes what a step of a check read and computed to files for other programs: `addend check --dump FOLDER`. */
#ifndef CHECK_DUMP_H
#define CHECK_DUMP_H
#include "check/checker.h"

/* audit/docs/dumps.md describes the files. ad_dump_before writes the weights and states from which a step starts and,
 * before the first step, the arrays that no step changes. ad_dump_after writes the batch of the step, and the reduced
 * gradients before clipping. The first rank writes. Collective; AD_IO on all ranks. */
ad_status ad_dump_before(ad_checker *checker, int64_t step) AD_CHECKED;
ad_status ad_dump_after(ad_checker *checker, const ad_step_report *report) AD_CHECKED;

#endif
