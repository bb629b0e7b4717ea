/* The mark by which the known bugs find a router. */
#ifndef NN_EXPERTS_H
#define NN_EXPERTS_H

/* Call sites contain this text where the scores, or the router, become each rank's own. The backward there is the sum
 * of the router's gradient over tp. */
#define AD_SCORES_BECOME_OWN "the router's scores"

#endif
