/* The table of the collective operations. */
#include "comm/operations.h"

static const ad_comm_operation operations[] = {
#define OPERATION(op, ...) [op] = {__VA_ARGS__},
    AD_OPERATION_LIST(OPERATION)
#undef OPERATION
        [AD_OP_SEND] = {.name = "send"},
    [AD_OP_RECEIVE] = {.name = "receive"},
};

const ad_comm_operation *ad_comm_operation_of(ad_collective_op op) {
  return (unsigned)op < sizeof operations / sizeof *operations ? &operations[op] : NULL;
}

const char *ad_op_name(ad_collective_op op) {
  const ad_comm_operation *operation = ad_comm_operation_of(op);
  return operation ? operation->name : "unknown";
}
