/* What the known mistakes of a router are found by. */
#ifndef NN_EXPERTS_H
#define NN_EXPERTS_H

/* Call sites say this where the scores, or the gate, become each rank's own: the backward there is the sum of the
 * gate's gradient over tp. */
#define AD_SCORES_BECOME_OWN "the router's scores"

#endif
