/* Divides a decoder's layers into the stages of a pipeline. */
#ifndef DECODER_STAGES_H
#define DECODER_STAGES_H
#include "addend/status.h"

#include <stddef.h>
#include <stdint.h>

/* Divides `layers` layers of cost `layer` each into contiguous stages so that the largest stage is as small as
 * possible. The last stage also has a head of cost `head`. Among equally good divisions, takes the one with most
 * layers at the end. out[stages]: the number of layers of each stage, which may be 0. */
void ad_cut_layers(int64_t layers, double layer, double head, size_t stages, int64_t *out);

#endif
