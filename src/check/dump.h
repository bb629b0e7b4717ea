/* What a proof's step read and computed, as files that other programs read: `addend check --dump FOLDER`. */
#ifndef CHECK_DUMP_H
#define CHECK_DUMP_H
#include "check/prover.h"

/* FOLDER/step-N.weights.safetensors and step-N.inputs.safetensors: the values that the step starts from, whole, and its
 * global batch by microbatches. After the step (its batch is still there). FOLDER/step-N.gradients.safetensors: the
 * reduced gradients, whole and before clipping, with loss, norm, count and rate in the metadata. The first rank writes;
 * collective. AD_IO on all ranks. */
ad_status ad_dump_weights(ad_prover *prover, int64_t step) AD_CHECKED;
ad_status ad_dump_inputs(ad_prover *prover, int64_t step) AD_CHECKED;
ad_status ad_dump_gradients(ad_prover *prover, const ad_step_report *report) AD_CHECKED;

#endif
