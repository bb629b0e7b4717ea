/* Divides a decoder's layers into the stages of a pipeline. */
#ifndef DECODER_STAGES_H
#define DECODER_STAGES_H
#include "addend/status.h"

#include <stddef.h>
#include <stdint.h>

/* Divides `layers` layers of cost `layer` each into `stages` contiguous stages so that the costliest stage costs as
 * little as possible. The last stage also has a head of cost `head`. Of equally good divisions, takes the one with most
 * layers at the end. out[i] becomes the number of layers of stage i, which may be 0. */
void ad_cut_layers(int64_t layers, double layer, double head, size_t stages, int64_t *out);

#endif
