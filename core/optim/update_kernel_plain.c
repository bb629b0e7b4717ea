/* The updates compiled for the instruction set that every machine has; the code is in update_kernel_body.h. */
#define KERNELS ad_updates_plain
#include "optim/update_kernel_body.h"
