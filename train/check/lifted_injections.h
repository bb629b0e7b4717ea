/* Lifts all mutations at injection points while something must be computed without them, and restores them. */
#ifndef CHECK_LIFTED_INJECTIONS_H
#define CHECK_LIFTED_INJECTIONS_H
#include "base/injection.h"

typedef struct ad_lifted_injections {
  ad_injection slots[AD_INJECT_COUNT];
} ad_lifted_injections;
ad_lifted_injections ad_injections_lift(void); /* lifts all injections */
/* Lifts all injections except those at points where values are computed (products, statistics, residuals): their
 * mutations show in a rank's own addends, too. */
ad_lifted_injections ad_injections_lift_reducing(void);
void ad_injections_restore(const ad_lifted_injections *lifted);

#endif
