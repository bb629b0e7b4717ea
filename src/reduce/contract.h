/* What the reducer of this version asks of a contract beyond that it means something. For the folders above that refuse
 * a contract before any rank starts. */
#ifndef REDUCE_CONTRACT_H
#define REDUCE_CONTRACT_H
#include "addend/reduce.h"

/* AD_INVALID if sums would form in another dtype than they travel in. Takes a complete contract. */
ad_status ad_contract_check_bucket(const ad_contract *contract) AD_CHECKED;

#endif
