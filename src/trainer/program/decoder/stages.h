/* How a decoder's layers are cut into the stages of a pipeline. */
#ifndef PROGRAM_DECODER_STAGES_H
#define PROGRAM_DECODER_STAGES_H
#include "addend/status.h"

#include <stddef.h>
#include <stdint.h>

/* The contiguous cut of `layers` equal layers, each of cost `layer`, whose largest stage is smallest, where the last
 * stage has a head of cost `head` too; of several the one with most layers at the end. out[stages]: layers of each,
 * which may be 0. */
void ad_cut_layers(int64_t layers, double layer, double head, size_t stages, int64_t *out);

#endif
