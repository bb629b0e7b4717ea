/* The fit's loops compiled for the instruction set that every machine has; the code is in fit_kernel_body.h. */
#define KERNELS ad_fit_plain
#define REGISTER 16
#define SIDE 3
#include "solve/fit_kernel_body.h"
