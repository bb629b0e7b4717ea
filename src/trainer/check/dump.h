/* What a proof's step read and computed, as files that other programs read: `addend check --dump FOLDER`. */
#ifndef CHECK_DUMP_H
#define CHECK_DUMP_H
#include "check/prover.h"

/* The files are those of docs/dumps.md, "What a proof computed". Before a step: the weights and states that it starts
 * from, and before the first one what no step changes. After it, while its batch is still there: the batch, and the
 * reduced gradients before clipping. The first rank writes; collective. AD_IO on all ranks. */
ad_status ad_dump_before(ad_prover *prover, int64_t step) AD_CHECKED;
ad_status ad_dump_after(ad_prover *prover, const ad_step_report *report) AD_CHECKED;

#endif
