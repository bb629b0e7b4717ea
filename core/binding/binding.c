/* The library's version, and the headers' constants by name: enumerators, sizes of structures, offsets of fields. */
#include "addend/binding.h"

#include <stddef.h>
#include <string.h>
#include "addend/array.h"
#include "addend/comm.h"
#include "addend/layout.h"
#include "addend/reduce.h"
#include "base/dtypes.h"
#include "base/error.h"
#include "comm/operations.h"
#include "mesh/group.h"

typedef struct constant {
  const char *name;
  int64_t value;
} constant;

/* clang-format off */
static const constant constants[] = {
#define STATUS(code, name, known, sentence) {#code, code},
#define AXIS(code, name) {#code, code},
#define OPERATION(code, ...) {#code, code},
#define DTYPE(code, ...) {#code, code},
#define NUMBER(expression) {#expression, (int64_t)(expression)}
#define OFFSET(type, field) {"offsetof(" #type ", " #field ")", (int64_t)offsetof(type, field)}
    AD_STATUS_LIST(STATUS)
    AD_AXIS_LIST(AXIS)
    NUMBER(AD_AXIS_COUNT), NUMBER(AD_DIMS_MAX),
    AD_WIDE_LIST(DTYPE) AD_NARROW_LIST(DTYPE) AD_INTEGER_LIST(DTYPE) AD_BOOL_LIST(DTYPE)
    NUMBER(AD_SUM), NUMBER(AD_MAX), NUMBER(AD_MIN), NUMBER(AD_PRODUCT),
    NUMBER(AD_BIT_AND), NUMBER(AD_BIT_OR), NUMBER(AD_BIT_XOR),
    NUMBER(AD_R), NUMBER(AD_I), NUMBER(AD_V), NUMBER(AD_P), NUMBER(AD_S(0)), NUMBER(AD_S_ZIGZAG(0)),
    NUMBER(AD_MULTILINEAR), NUMBER(AD_ADDITIVE), NUMBER(AD_NONLINEAR),
    NUMBER(AD_MOVE_ALL_REDUCE), NUMBER(AD_MOVE_REDUCE_SCATTER), NUMBER(AD_MOVE_ALL_GATHER), NUMBER(AD_MOVE_ALL_TO_ALL),
    NUMBER(AD_MOVE_CONVERT), NUMBER(AD_MOVE_ONCE), NUMBER(AD_MOVE_DECLARE), NUMBER(AD_MOVE_COUNT),
    AD_OPERATION_LIST(OPERATION)
    NUMBER(AD_ANY_SOURCE),
    NUMBER(AD_SYNC_NONE), NUMBER(AD_SYNC_SHARD), NUMBER(AD_SYNC_ALL),
    NUMBER(AD_LOG_INFO), NUMBER(AD_LOG_WARNING),
    NUMBER(sizeof(ad_shape)), NUMBER(sizeof(ad_layout)), NUMBER(sizeof(ad_span)), NUMBER(sizeof(ad_transition)),
    NUMBER(sizeof(ad_path_step)), NUMBER(sizeof(ad_rule)), NUMBER(sizeof(ad_group)), NUMBER(sizeof(ad_group_shape)),
    NUMBER(sizeof(ad_message)), NUMBER(sizeof(ad_segment)), NUMBER(sizeof(ad_collective)), NUMBER(sizeof(ad_request)),
    NUMBER(sizeof(ad_transfer)),
    NUMBER(sizeof(ad_rendezvous)),
    NUMBER(sizeof(ad_array)), NUMBER(sizeof(ad_precision_policy)), NUMBER(sizeof(ad_param_spec)),
    NUMBER(sizeof(ad_reducer_options)), NUMBER(sizeof(ad_launch_options)), NUMBER(sizeof(ad_launch_result)),
    /* The structures that bindings fill in or read field by field. */
    OFFSET(ad_shape, ndim), OFFSET(ad_shape, dim),
    OFFSET(ad_layout, mesh), OFFSET(ad_layout, type), OFFSET(ad_layout, depth),
    OFFSET(ad_group, mesh), OFFSET(ad_group, axes), OFFSET(ad_group, base),
    OFFSET(ad_transition, move), OFFSET(ad_transition, from), OFFSET(ad_transition, to),
    OFFSET(ad_transition, moves_bytes), OFFSET(ad_transition, backward), OFFSET(ad_transition, backward_from),
    OFFSET(ad_transition, backward_to),
    OFFSET(ad_path_step, move), OFFSET(ad_path_step, axes), OFFSET(ad_path_step, from), OFFSET(ad_path_step, to),
    OFFSET(ad_rule, size), OFFSET(ad_rule, name), OFFSET(ad_rule, dims), OFFSET(ad_rule, linearity),
    OFFSET(ad_rule, full),
    OFFSET(ad_span, first), OFFSET(ad_span, count),
    OFFSET(ad_segment, rows), OFFSET(ad_segment, row),
    OFFSET(ad_collective, size), OFFSET(ad_collective, op), OFFSET(ad_collective, group), OFFSET(ad_collective, in),
    OFFSET(ad_collective, out), OFFSET(ad_collective, count), OFFSET(ad_collective, counts),
    OFFSET(ad_collective, receive_counts), OFFSET(ad_collective, messages), OFFSET(ad_collective, message_count),
    OFFSET(ad_collective, dtype), OFFSET(ad_collective, accumulate), OFFSET(ad_collective, reduction),
    OFFSET(ad_collective, out_dtype), OFFSET(ad_collective, in_scale), OFFSET(ad_collective, out_scale),
    OFFSET(ad_collective, adds), OFFSET(ad_collective, segments), OFFSET(ad_collective, segment_count),
    OFFSET(ad_collective, root), OFFSET(ad_collective, site), OFFSET(ad_collective, ranks),
    OFFSET(ad_collective, ranges),
    OFFSET(ad_message, peer), OFFSET(ad_message, send), OFFSET(ad_message, receive), OFFSET(ad_message, count),
    OFFSET(ad_request, id), OFFSET(ad_request, source),
    OFFSET(ad_transfer, size), OFFSET(ad_transfer, ranks), OFFSET(ad_transfer, peer), OFFSET(ad_transfer, tag),
    OFFSET(ad_transfer, send), OFFSET(ad_transfer, receive), OFFSET(ad_transfer, receives), OFFSET(ad_transfer, count),
    OFFSET(ad_transfer, dtype), OFFSET(ad_transfer, site),
    OFFSET(ad_rendezvous, size), OFFSET(ad_rendezvous, context), OFFSET(ad_rendezvous, put),
    OFFSET(ad_rendezvous, wait), OFFSET(ad_rendezvous, get), OFFSET(ad_rendezvous, seconds),
};
/* clang-format on */

const char *ad_version(void) { return AD_VERSION; }

ad_status ad_header_constant(const char *name, int64_t *out) {
  AD_NEED(name, out);
  for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
    if (!strcmp(constants[i].name, name)) return *out = constants[i].value, AD_OK;
  return ad_fail(AD_INVALID,
                 "ad_header_constant: '%s' is not a constant of addend's headers; write names as the headers do, for "
                 "example AD_F32, AD_S(0) or sizeof(ad_layout)",
                 name);
}
