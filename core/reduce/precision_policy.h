/* Completes the precision policy of a parameter, for the reducer. */
#ifndef REDUCE_PRECISION_POLICY_H
#define REDUCE_PRECISION_POLICY_H
#include "addend/parameter.h"
#include "base/internal.h"

AD_INTERNAL AD_CHECKED ad_status ad_precision_policy_complete(
    /* fills zero fields; a complete policy stays as it is; AD_INVALID if the dtypes do not fit each other */
    ad_precision_policy *policy);

#endif
