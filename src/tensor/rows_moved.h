/* Rows between the order in which they arrived and the order of experts: op_rows.c, for op_exchange.c. */
#ifndef TENSOR_ROWS_MOVED_H
#define TENSOR_ROWS_MOVED_H
#include "addend/tensor.h"

ad_tensor *ad_rows_by_expert(ad_tape *tape, ad_tensor *x, const ad_routing *routing, int back, const char *site);

#endif
