/* The kernels compiled for the instruction set that every machine has; the code is in kernels_body.h. */
#define KERNELS ad_kernels_plain
#include "kernels/kernels_body.h"
