/* Completing the contract of a parameter, for the reducer. */
#ifndef REDUCE_CONTRACT_H
#define REDUCE_CONTRACT_H
#include "addend/parameter.h"
#include "base/internal.h"

AD_INTERNAL AD_CHECKED ad_status ad_contract_complete(
    ad_contract *contract); /* fills zero fields; a complete one stays as it is; AD_INVALID if it means nothing */

#endif
